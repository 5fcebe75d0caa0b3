"""Associative recall: a list of keys and values, then keys whose values are asked for.

    pairs: river stone lamp cloud …
    ask: lamp              → cloud

Keys of several symbols share them with other keys, so that only all together tell which pair is meant. Training has
keys of one symbol, and of two that are cells of a grid; documents have longer ones, out of fewer symbols.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from dsmla_bench.evals.tasks.text import (
    Document,
    Part,
    as_test_split,
    documents,
    keys,
    phrases,
    prompt_and_answer,
    values,
)

CHOICES = 8


def layout(listed: Sequence[tuple[str, str]], asked: Sequence[tuple[str, str]]) -> list[Part]:
    """The text of (key, value) pairs, each with its blank, and of those that are asked for."""
    parts = [Part(f"pairs:{''.join(key + value for key, value in listed)}\nask:")]
    for key, value in asked:
        parts += [Part(key), Part(value, answer=True)]
    return parts


def with_values(rng: random.Random, drawn_keys: Sequence[str]) -> list[tuple[str, str]]:
    """(key, value) for each key; values are of one symbol, with its blank."""
    return [(key, f" {value}") for key, value in zip(drawn_keys, rng.choices(values(), k=len(drawn_keys)), strict=True)]


def one_symbol_keys(rng: random.Random, count: int) -> list[str]:
    """Different keys, each one symbol with its blank."""
    return [f" {key}" for key in rng.sample(keys(), count)]


def two_symbol_keys(rng: random.Random, count: int) -> list[str]:
    """Different keys, each two symbols: cells of a grid that is half full at most."""
    side = math.ceil(math.sqrt(2 * count))
    chosen = rng.sample(keys(), 2 * side)
    cells = rng.sample(range(side * side), count)
    return [f" {chosen[cell // side]} {chosen[side + cell % side]}" for cell in cells]


def document(rng: random.Random, pairs: int, key_symbols: int, alphabet: int) -> Document:
    """One question, with the answer and values of other keys to choose from."""
    listed = with_values(rng, phrases(rng, keys(), alphabet, pairs, key_symbols))
    asked = rng.choice(listed)
    others = sorted({value for _, value in listed} - {asked[1]})
    choices = [asked[1], *rng.sample(others, min(CHOICES - 1, len(others)))]
    rng.shuffle(choices)
    return prompt_and_answer(layout(listed, [asked])) | {
        "choices": choices,
        "pairs": pairs,
        "key_symbols": key_symbols,
        "alphabet": alphabet,
    }


def dataset(seed: int, strata: Sequence[Sequence[int]], **_: Any) -> dict[str, Any]:
    """Strata [documents, pairs, symbols of a key, different symbols of all keys]."""
    return as_test_split(documents("recall", seed, strata, document))
