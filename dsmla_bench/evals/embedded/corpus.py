"""The text that the embedded model learns from, out of three freely licensed Debian packages, and what is held out.

    apt-get download wordnet-base dict-jargon dict-devil
    for package in *.deb; do dpkg -x $package unpacked; done
    python -m dsmla_bench.evals.embedded.corpus unpacked .train

writes one document a line:

    .train/definitions.tsv   a word, a tab, one of its glosses without the examples: WordNet 3.0
    .train/prose.txt         glosses with their examples, and the Jargon File's entries
    text/definitions.tsv     glosses that training never sees, of words that are one token: the definition task
    text/prose.txt           entries of The Devil's Dictionary, none of which training sees: bits per byte, and filler

A gloss is held out when a hash of it says so, whichever words share it. The last two lie in the package.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HELD_OUT = Path(__file__).parent / "text"
HELD_OUT_ONE_IN = 10
HELD_OUT_PROSE_CHARACTERS = 200_000

_JARGON_START = "404 compliant"
_DEVIL_START = "ABASEMENT, n."


def main(unpacked: Path, out: Path) -> None:
    """Read the unpacked packages; write the training text to ``out`` and the held-out text into the package."""
    definitions, held_out, prose = [], [], []
    for lemmas, gloss in sorted(_synsets(unpacked / "usr/share/wordnet")):
        definition = _definition(gloss)
        lines = [f"{word}\t{definition}" for word in lemmas if re.fullmatch("[a-z]+", word)]
        if is_held_out(definition):
            held_out += lines
        else:
            definitions += lines
            prose.append(f"{', '.join(lemmas)}: {gloss}")
    prose += _entries(unpacked / "usr/share/dictd/jargon.dict.dz", _JARGON_START)
    devil = _entries(unpacked / "usr/share/dictd/devil.dict.dz", _DEVIL_START)
    _write(out / "definitions.tsv", definitions)
    _write(out / "prose.txt", prose)
    _write(out / "held_out_definitions.tsv", held_out)
    _write(HELD_OUT / "prose.txt", _first(devil, HELD_OUT_PROSE_CHARACTERS))


def is_held_out(definition: str) -> bool:
    """Whether training must not see a definition."""
    return int(hashlib.sha256(definition.encode()).hexdigest(), 16) % HELD_OUT_ONE_IN == 0


def _synsets(folder: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """(lemmas, gloss) of every synset. The format is that of wndb(5): a data line is fields, ``|`` and the gloss."""
    for part in ("adj", "adv", "noun", "verb"):
        for line in (folder / f"data.{part}").read_text("latin-1").splitlines():
            if line.startswith("  "):
                continue
            fields, gloss = line.split(" | ", 1)
            _, _, _, count, *rest = fields.split()
            lemmas = rest[: 2 * int(count, 16) : 2]
            yield tuple(re.sub(r"\(.*\)", "", lemma).replace("_", " ") for lemma in lemmas), gloss.strip()


def _definition(gloss: str) -> str:
    return gloss.split('; "')[0].strip(" ;")


def _entries(dictionary: Path, start: str) -> list[str]:
    """A dictd database's entries, each on one line, from the one that begins with ``start``."""
    text = gzip.decompress(dictionary.read_bytes()).decode("utf-8", "replace")
    text = text[text.index(start) :]
    blocks = re.split(r"\n\n(?=\S)", text)
    return [line for block in blocks if len(line := " ".join(block.split())) > 80]


def _first(lines: list[str], characters: int) -> list[str]:
    """As many whole lines as fit."""
    total, kept = 0, []
    for line in lines:
        total += len(line) + 1
        if total > characters:
            break
        kept.append(line)
    return kept


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
