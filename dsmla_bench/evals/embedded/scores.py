"""What the embedded model scores on its tasks by size and cache format: the table that task sizes are chosen from.

Every stratum is a task at one size with documents that no training seed draws. A document is right when the model's
first choice is right at every token of the answer, read in one pass: what greedy decoding would give.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dsmla_bench.evals.embedded.curriculum import encoded, padded
from dsmla_bench.evals.simulated_cache import attach
from dsmla_bench.evals.tasks import copy, definitions, needle, prose, recall, variable_tracking
from dsmla_bench.evals.tasks.text import Document, Part, held_out_prose, keys
from dsmla_bench.kernels.formats import CacheFormat, get_format

FORMATS = ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")
BATCH_TOKENS = 65536
WORDS = len(keys())
RECALL = [
    *((pairs, 1, WORDS) for pairs in (64, 256)),
    *((pairs, 2, alphabet) for pairs, alphabet in ((32, 6), (64, 9), (256, 17), (512, 24), (1000, 33))),
    *((pairs, 3, alphabet) for pairs, alphabet in ((32, 4), (32, 6), (64, 6), (64, 8), (128, 8), (256, 10))),
]
VARIABLE_TRACKING = [
    *((chains, hops, 0) for chains, hops in ((8, 8), (32, 8), (32, 16))),
    *((8, 4, strays) for strays in (1, 2, 3)),
    *((8, 6, strays) for strays in (1, 2, 4)),
    *((chains, hops, 4) for chains, hops in ((8, 8), (16, 4), (16, 8))),
]
COPY = [
    *((length, length, 64) for length in (64, 128, 256)),
    *((length, length, 32) for length in (32, 64, 96, 128, 192)),
    *((length, length, 16) for length in (32, 64)),
]
NEEDLE = [
    *((characters, needles, WORDS, WORDS, 0.5) for characters in (1000, 8000) for needles in (1, 8)),
    *((600, 8, of_names, of_codes, 0.5) for of_names in (3, 4, 8) for of_codes in (8, 16, WORDS)),
    *((1200, 16, 5, of_codes, 0.5) for of_codes in (8, 16, WORDS)),
]
DEFINITIONS = [(entries, left_out) for entries in (8, 16, 32) for left_out in (0, 20, 40, 60)]


class Stratum(NamedTuple):
    """A task at one size: how a document of it is drawn."""

    task: str
    size: str
    draw: Callable[[random.Random], list[Part]]


def strata() -> Iterator[Stratum]:
    """The grid of tasks and sizes, in the order of a task's ``strata``."""
    for task, document, grid in (
        ("recall", recall.document, RECALL),
        ("variable_tracking", variable_tracking.document, VARIABLE_TRACKING),
        ("copy", copy.document, COPY),
        ("needle", needle.document, NEEDLE),
        ("definitions", definitions.document, DEFINITIONS),
    ):
        for sizes in grid:
            yield Stratum(task, " ".join(map(str, sizes)), functools.partial(_asked, document, sizes))
    yield Stratum("prose", "2000", lambda rng: prose.draw(rng, held_out_prose(), 2000))


def score(model: Any, documents: int, seed: int) -> Iterator[dict[str, Any]]:
    """A line per stratum: per format exact answers, KL divergence from bf16 and loss, the last two per answer token."""
    for stratum in strata():
        name = f"score/{seed}/{stratum.task}/{stratum.size}"
        drawn = [stratum.draw(random.Random(f"{name}/{index}")) for index in range(documents)]
        tokens, answers = padded(encoded(drawn))
        reference = None
        line: dict[str, Any] = {"task": stratum.task, "size": stratum.size, "length": tokens.shape[1]}
        for fmt in FORMATS:
            found = _forward(model, tokens, answers, get_format(fmt))
            reference = found if reference is None else reference
            line[fmt] = _figures(found, reference, tokens, answers)
        yield line


def _forward(model: Any, tokens: np.ndarray, answers: np.ndarray, fmt: CacheFormat) -> torch.Tensor:
    """Log-probabilities [answer tokens, vocabulary] in fp32."""
    rows = max(1, BATCH_TOKENS // tokens.shape[1])
    found = []
    with attach(model, fmt), torch.no_grad():
        for start in range(0, len(tokens), rows):
            ids = torch.from_numpy(tokens[start : start + rows]).to(model.device)
            wanted = torch.from_numpy(answers[start : start + rows]).to(model.device)
            found.append(model(ids).logits[:, :-1][wanted[:, 1:]].float().log_softmax(-1))
    return torch.cat(found)


def _figures(found: torch.Tensor, reference: torch.Tensor, tokens: np.ndarray, answers: np.ndarray) -> dict[str, float]:
    gold = torch.from_numpy(tokens[:, 1:][answers[:, 1:]]).to(found.device)
    right = (found.argmax(-1) == gold).cpu().numpy()
    document = np.nonzero(answers[:, 1:])[0]
    wrong = np.bincount(document, ~right, minlength=len(tokens))
    kl = (reference.exp() * (reference - found)).sum(-1)
    return {
        "exact": float((wrong == 0).mean()),
        "tokens_right": float(right.mean()),
        "nll": float(-found.gather(-1, gold[:, None]).mean()),
        "kl": float(kl.mean()),
        "same_choice": float((found.argmax(-1) == reference.argmax(-1)).float().mean()),
    }


def _asked(document: Callable[..., Document], sizes: Sequence[Any], rng: random.Random) -> list[Part]:
    drawn = document(rng, *sizes)
    return [Part(drawn["prompt"]), Part(drawn["answer"], answer=True)]
