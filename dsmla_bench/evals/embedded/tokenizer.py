"""The embedded model's tokenizer: byte-level BPE over the training prose, and the symbols that tasks are made of.

    python -m dsmla_bench.evals.embedded.tokenizer .train

writes ``model/tokenizer.json`` (any text in, the same text out; one special token, which ends a text and starts the
next) and ``text/symbols.txt``: words that are one token when a blank stands before them. Keys and values of the tasks
are symbols, because a model of this size learns to bind tokens and not spellings.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dsmla_bench.evals.embedded import END_OF_TEXT, MODEL, TEXT

VOCABULARY = 3072
SHORTEST_SYMBOL = 4
RAREST_SYMBOL = 100


def main(text: Path) -> None:
    """Train on ``text/prose.txt`` of the given folder; write the tokenizer and the symbols into the package."""
    prose = (text / "prose.txt").read_text("utf-8")
    tokenizer = trained(prose.splitlines())
    tokenizer.save(str(MODEL / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
    }
    (MODEL / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    uses = Counter(prose.split())
    lemmas = {line.split("\t")[0] for line in (text / "definitions.tsv").read_text("utf-8").splitlines()}
    common = {word for word in lemmas if uses[word] >= RAREST_SYMBOL}
    found = symbols(tokenizer, common)
    _write(TEXT / "symbols.txt", found)
    held_out = (text / "held_out_definitions.tsv").read_text("utf-8").splitlines()
    _write(TEXT / "definitions.tsv", [line for line in held_out if line.split("\t")[0] in set(found)])


def trained(lines: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer of ``VOCABULARY`` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def symbols(tokenizer: Tokenizer, words: set[str]) -> list[str]:
    """Those of the words that are lower-case and one token after a blank, in the order of their token ids."""
    vocabulary = tokenizer.get_vocab()
    tokens = [token[1:] for token in sorted(vocabulary, key=lambda token: vocabulary[token]) if token.startswith("Ġ")]
    return [token for token in tokens if re.fullmatch(f"[a-z]{{{SHORTEST_SYMBOL},}}", token) and token in words]


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
