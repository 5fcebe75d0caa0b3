"""Needles in running text: sentences that give a code of four words, one of which is asked for.

… The code of river is stone lamp cloud moon. …
The code of river is   → stone lamp cloud moon.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dsmla_bench.evals.tasks.text import (
    Document,
    Part,
    as_test_split,
    documents,
    held_out_prose,
    keys,
    prompt_and_answer,
    values,
)

CODE_SYMBOLS = 4


def draw(
    rng: random.Random, lines: Sequence[str], characters: int, needles: int, questions: int, depth: float | None = None
) -> list[Part]:
    """Text of about so many characters with ``needles`` needles in it, ``questions`` of which are asked for.

    The first one asked for lies at ``depth``, from 0 to 1; None: anywhere, as all others do.
    """
    names = rng.sample(keys(), needles)
    codes = ["".join(f" {word}" for word in rng.sample(values(), CODE_SYMBOLS)) + "." for _ in names]
    haystack = filler(rng, lines, characters)
    depths = [rng.random() for _ in names]
    if depth is not None:
        depths[0] = depth
    length = len(haystack)
    for place, name, code in sorted(zip(depths, names, codes, strict=True), reverse=True):
        haystack.insert(round(place * length), f"The code of {name} is{code}")
    parts = [Part(" ".join(haystack))]
    for index in range(questions):
        parts += [Part(f"\nThe code of {names[index]} is"), Part(codes[index], answer=True)]
    return parts


def filler(rng: random.Random, lines: Sequence[str], characters: int) -> list[str]:
    """The words of consecutive lines from anywhere on, so many that they make up about ``characters``."""
    at, words, length = rng.randrange(len(lines)), [], 0
    while length < characters:
        added = lines[at % len(lines)].split()
        words += added
        length += sum(map(len, added)) + len(added)
        at += 1
    while words and length > characters:
        length -= len(words.pop()) + 1
    return words


def document(rng: random.Random, characters: int, needles: int, depth: float) -> Document:
    """One needle is asked for, at that depth of text that the embedded model never saw."""
    asked = prompt_and_answer(draw(rng, held_out_prose(), characters, needles, 1, depth))
    return asked | {"characters": characters, "needles": needles, "depth": depth}


def dataset(seed: int, strata: Sequence[Sequence[int]], depths: Sequence[float], **_: Any) -> dict[str, Any]:
    """Strata [documents at each depth, characters, needles]."""
    grid = [[*stratum, depth] for stratum in strata for depth in depths]
    return as_test_split(documents("needle", seed, grid, document))
