"""A glossary read backwards: definitions with their words, then definitions whose words are asked for.

    a large natural stream of water: river
    …
    a large natural stream of water:   → river

Definitions that end alike are told apart only by what stands further back. Documents ask with some words left out,
which training does not.
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
    held_out_definitions,
    prompt_and_answer,
)

LONGEST = 120
"""Characters of the longest definition that is used."""
CHOICES = 4
Entry = tuple[str, str]
"""A word and one of its definitions."""


def draw(rng: random.Random, glossary: Sequence[Entry], entries: int, questions: int) -> list[Part]:
    """``entries`` entries of different words and definitions, ``questions`` of which are asked for."""
    chosen = entries_of(rng, glossary, entries)
    return layout(chosen, rng.sample(chosen, questions))


def layout(listed: Sequence[Entry], asked: Sequence[Entry]) -> list[Part]:
    """The text of a glossary, and of the entries that are asked for."""
    parts = [Part("\n".join(f"{definition}: {word}" for word, definition in listed))]
    for word, definition in asked:
        parts += [Part(f"\n{definition}:"), Part(f" {word}", answer=True)]
    return parts


def entries_of(rng: random.Random, glossary: Sequence[Entry], count: int) -> list[Entry]:
    """Entries in random order, no word and no definition twice."""
    chosen: dict[str, str] = {}
    used = set()
    while len(chosen) < count:
        word, definition = rng.choice(glossary)
        if word not in chosen and definition not in used:
            chosen[word] = definition
            used.add(definition)
    return list(chosen.items())


def thinned(rng: random.Random, definition: str, percent: int) -> str:
    """The definition without so many percent of its words, at least one left."""
    words = definition.split()
    kept = rng.sample(range(len(words)), max(1, round(len(words) * (100 - percent) / 100)))
    return " ".join(words[place] for place in sorted(kept))


def document(rng: random.Random, entries: int, left_out: int) -> Document:
    """One definition, ``left_out`` percent of it missing, is asked for; to choose from words of the glossary."""
    listed = entries_of(rng, held_out_definitions(), entries)
    (word, definition), *others = rng.sample(listed, CHOICES)
    choices = [f" {word}", *(f" {other}" for other, _ in others)]
    rng.shuffle(choices)
    asked = prompt_and_answer(layout(listed, [(word, thinned(rng, definition, left_out))]))
    return asked | {"choices": choices, "entries": entries, "left_out": left_out}


def dataset(seed: int, strata: Sequence[Sequence[int]], **_: Any) -> dict[str, Any]:
    """Strata [documents, entries of the glossary, percent of the definition's words left out]."""
    return as_test_split(documents("definitions", seed, strata, document))
