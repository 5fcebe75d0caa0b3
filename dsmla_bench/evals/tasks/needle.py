"""Needles in running text: sentences that give a code of four words, one of which is asked for.

    … The code of river is stone lamp cloud moon. …
    The code of river is   → stone lamp cloud moon.

In documents a name is two words that others share, and codes are made of few words.
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
    phrases,
    prompt_and_answer,
    values,
)

NAME_WORDS, CODE_WORDS = 2, 4


def draw(rng: random.Random, lines: Sequence[str], characters: int, needles: int, questions: int) -> list[Part]:
    """Text of about so many characters with ``needles`` needles anywhere in it, ``questions`` of which are asked for.

    Names are of one word, and no code has a word twice.
    """
    names = [f" {name}" for name in rng.sample(keys(), needles)]
    codes = ["".join(f" {word}" for word in rng.sample(values(), CODE_WORDS)) for _ in names]
    depths = [rng.random() for _ in names]
    return layout(filler(rng, lines, characters), names, codes, depths, questions)


def layout(
    haystack: Sequence[str], names: Sequence[str], codes: Sequence[str], depths: Sequence[float], questions: int
) -> list[Part]:
    """The words of a text with needles at depths from 0 to 1, and the first so many of them asked for."""
    words = list(haystack)
    for place, name, code in sorted(zip(depths, names, codes, strict=True), reverse=True):
        words.insert(round(place * len(haystack)), f"The code of{name} is{code}.")
    parts = [Part(" ".join(words))]
    for name, code in list(zip(names, codes, strict=True))[:questions]:
        parts += [Part(f"\nThe code of{name} is"), Part(f"{code}.", answer=True)]
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


def document(rng: random.Random, characters: int, needles: int, of_names: int, of_codes: int, depth: float) -> Document:
    """One needle is asked for, at that depth of text that the embedded model never saw; the others lie anywhere.

    Names are made of ``of_names`` different words, codes of ``of_codes``.
    """
    names = phrases(rng, keys(), of_names, needles, NAME_WORDS)
    codes = phrases(rng, values(), of_codes, needles, CODE_WORDS)
    depths = [depth, *(rng.random() for _ in names[1:])]
    asked = layout(filler(rng, held_out_prose(), characters), names, codes, depths, questions=1)
    return prompt_and_answer(asked) | {"characters": characters, "needles": needles, "depth": depth}


def dataset(seed: int, strata: Sequence[Sequence[int]], depths: Sequence[float], **_: Any) -> dict[str, Any]:
    """Strata [documents at each depth, characters, needles, different words of all names, of all codes]."""
    grid = [[*stratum, depth] for stratum in strata for depth in depths]
    return as_test_split(documents("needle", seed, grid, document))
