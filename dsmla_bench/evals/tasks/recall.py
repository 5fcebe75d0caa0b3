"""Associative recall: a list of keys and values, then keys whose values are asked for.

    pairs: river stone lamp cloud …
    ask: lamp              → cloud

Keys of two symbols are cells of a grid, so that each half is shared with other keys and only both together tell which
pair is meant.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from dsmla_bench.evals.tasks.text import Document, Part, as_test_split, documents, keys, prompt_and_answer, values

CHOICES = 8


def draw(rng: random.Random, pairs: int, key_symbols: int, questions: int) -> list[Part]:
    """``questions`` different keys out of ``pairs`` are asked for. Raises ValueError when there are too few."""
    listed = drawn_pairs(rng, pairs, key_symbols)
    return layout(listed, rng.sample(listed, questions))


def layout(listed: Sequence[tuple[str, str]], asked: Sequence[tuple[str, str]]) -> list[Part]:
    """The text of (key, value) pairs, each with its blank, and of those that are asked for."""
    parts = [Part(f"pairs:{''.join(key + value for key, value in listed)}\nask:")]
    for key, value in asked:
        parts += [Part(key), Part(value, answer=True)]
    return parts


def drawn_pairs(rng: random.Random, count: int, key_symbols: int, first: int | None = None) -> list[tuple[str, str]]:
    """(key, value), keys all different and of one or two symbols, values of one, each symbol with its blank.

    With ``first`` keys of one symbol and values come from so many of the first symbols alone.
    """
    drawn = one_symbol_keys(rng, count, first) if key_symbols == 1 else two_symbol_keys(rng, count)
    return list(zip(drawn, (f" {value}" for value in rng.choices(values()[:first], k=count)), strict=True))


def one_symbol_keys(rng: random.Random, count: int, first: int | None = None) -> list[str]:
    """Different keys out of the ``first`` symbols (None: all), each one symbol with its blank."""
    return [f" {key}" for key in rng.sample(keys()[:first], count)]


def two_symbol_keys(rng: random.Random, count: int) -> list[str]:
    """Different keys, each two symbols: cells of a grid that is half full at most."""
    side = math.ceil(math.sqrt(2 * count))
    chosen = rng.sample(keys(), 2 * side)
    cells = rng.sample(range(side * side), count)
    return [f" {chosen[cell // side]} {chosen[side + cell % side]}" for cell in cells]


def document(rng: random.Random, pairs: int, key_symbols: int) -> Document:
    """One question, with the answer and values of other keys to choose from."""
    listed = drawn_pairs(rng, pairs, key_symbols)
    asked = rng.choice(listed)
    others = sorted({value for _, value in listed} - {asked[1]})
    choices = [asked[1], *rng.sample(others, min(CHOICES - 1, len(others)))]
    rng.shuffle(choices)
    return prompt_and_answer(layout(listed, [asked])) | {
        "choices": choices,
        "pairs": pairs,
        "key_symbols": key_symbols,
    }


def dataset(seed: int, strata: Sequence[Sequence[int]], **_: Any) -> dict[str, Any]:
    """Strata [documents, pairs, symbols of a key]."""
    return as_test_split(documents("recall", seed, strata, document))
