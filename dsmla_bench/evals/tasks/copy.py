"""A list to be copied. Few different symbols make it hard to say where in the list one is.

copy: river stone river lamp …
again: river stone river lamp …
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dsmla_bench.evals.tasks.text import Document, Part, as_test_split, documents, prompt_and_answer, symbols


def draw(rng: random.Random, length: int, alphabet: int) -> list[Part]:
    """``length`` symbols, each one of ``alphabet`` different ones."""
    letters = rng.sample(symbols(), alphabet)
    listed = "".join(f" {letter}" for letter in rng.choices(letters, k=length))
    return [Part(f"copy:{listed}\nagain:"), Part(listed, answer=True)]


def document(rng: random.Random, shortest: int, longest: int, alphabet: int) -> Document:
    """A list of random length."""
    length = rng.randint(shortest, longest)
    return prompt_and_answer(draw(rng, length, alphabet)) | {"length": length, "alphabet": alphabet}


def dataset(seed: int, strata: Sequence[Sequence[int]], **_: Any) -> dict[str, Any]:
    """Strata [documents, shortest length, longest length, different symbols]."""
    return as_test_split(documents("copy", seed, strata, document))
