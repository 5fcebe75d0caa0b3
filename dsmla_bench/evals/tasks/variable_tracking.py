"""Chains of links in any order, followed from their start: each step is a recall whose key is the last answer.

    links: stone lamp; river stone; cloud moon; …
    from river: stone lamp

A chain ends where no link goes on, and the answer ends with the line. One wrong step spoils what follows. A link is the
two words before a semicolon: documents have stray words before some, which training has not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from dsmla_bench.evals.tasks.text import Document, Part, as_test_split, documents, prompt_and_answer, symbols


def draw(rng: random.Random, chains: int, hops: int, questions: int, strays: int = 0) -> list[Part]:
    """``chains`` chains of ``hops`` links each, ``questions`` of which are asked for.

    Before ``strays`` of the links stands one of the chains' words.
    """
    words = rng.sample(symbols(), chains * (hops + 1))
    drawn = [words[start : start + hops + 1] for start in range(0, len(words), hops + 1)]
    links = [f" {a} {b};" for chain in drawn for a, b in itertools.pairwise(chain)]
    rng.shuffle(links)
    for place in rng.sample(range(len(links)), strays):
        links[place] = f" {rng.choice(words)}{links[place]}"
    parts = [Part(f"links:{''.join(links)}\n")]
    for first, *rest in rng.sample(drawn, questions):
        parts += [Part(f"from {first}:"), Part("".join(f" {word}" for word in rest) + "\n", answer=True)]
    return parts


def document(rng: random.Random, chains: int, hops: int, strays: int) -> Document:
    """One chain is asked for."""
    return prompt_and_answer(draw(rng, chains, hops, 1, strays)) | {"chains": chains, "hops": hops, "strays": strays}


def dataset(seed: int, strata: Sequence[Sequence[int]], **_: Any) -> dict[str, Any]:
    """Strata [documents, chains, hops, stray words]."""
    return as_test_split(documents("variable_tracking", seed, strata, document))
