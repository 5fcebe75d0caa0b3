"""Running text, all of which is to be predicted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dsmla_bench.evals.embedded import END_OF_TEXT
from dsmla_bench.evals.tasks.text import Part, as_test_split, held_out_prose


def draw(rng: random.Random, lines: Sequence[str], characters: int) -> list[Part]:
    """Consecutive lines from anywhere on, of at least so many characters."""
    at, chosen, length = rng.randrange(len(lines)), [], 0
    while length < characters:
        chosen.append(lines[at % len(lines)])
        length += len(chosen[-1]) + 1
        at += 1
    return [Part(END_OF_TEXT), Part("\n".join(chosen), answer=True)]


def dataset(count: int, characters: int, **_: Any) -> dict[str, Any]:
    """Texts that follow each other, each of whole lines and at least so many characters."""
    lines, texts = iter(held_out_prose()), []
    for _index in range(count):
        chosen: list[str] = []
        while sum(map(len, chosen)) + len(chosen) < characters:
            chosen.append(next(lines))
        texts.append({"text": "\n".join(chosen)})
    return as_test_split(texts)
