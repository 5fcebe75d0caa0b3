"""A glossary, then definitions from it whose words are asked for.

- river: a large natural stream of water
…
Which word means a large natural stream of water? It is   → river
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
    parts = [Part("\n".join(f"- {word}: {definition}" for word, definition in listed))]
    for word, definition in asked:
        parts += [Part(f"\nWhich word means {definition}? It is"), Part(f" {word}", answer=True)]
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


def document(rng: random.Random, entries: int) -> Document:
    """One definition is asked for, with its word and other words of the glossary to choose from."""
    listed = entries_of(rng, held_out_definitions(), entries)
    asked, *others = rng.sample(listed, CHOICES)
    choices = [f" {word}" for word, _ in (asked, *others)]
    rng.shuffle(choices)
    return prompt_and_answer(layout(listed, [asked])) | {"choices": choices, "entries": entries}


def dataset(seed: int, strata: Sequence[Sequence[int]], **_: Any) -> dict[str, Any]:
    """Strata [documents, entries of the glossary]."""
    return as_test_split(documents("definitions", seed, strata, document))
