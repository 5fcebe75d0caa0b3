"""What tasks are made of: symbols, held-out text, and texts of which parts are answers.

A task's module has a pure function ``draw(rng, ...)`` that returns a text as a list of ``Part``. Training scores the
answers of many questions in one text; an evaluated document is a text with one question. Both come from the same
function, so a layout is written once. What is drawn depends on the generator alone.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dsmla_bench.evals.embedded import TEXT


class Part(NamedTuple):
    """A piece of a text, and whether a model has to predict it."""

    text: str
    answer: bool = False


@functools.cache
def symbols() -> tuple[str, ...]:
    """Words that are one token of the embedded model's tokenizer when a blank stands before them."""
    return _lines("symbols.txt")


@functools.cache
def keys() -> tuple[str, ...]:
    """Every second symbol."""
    return symbols()[::2]


@functools.cache
def values() -> tuple[str, ...]:
    """The other symbols."""
    return symbols()[1::2]


@functools.cache
def held_out_prose() -> tuple[str, ...]:
    """Entries of The Devil's Dictionary, which the embedded model never saw."""
    return _lines("prose.txt")


@functools.cache
def held_out_definitions() -> tuple[tuple[str, str], ...]:
    """(symbol, one of its WordNet definitions), which the embedded model never saw."""
    pairs = (line.split("\t") for line in _lines("definitions.tsv"))
    return tuple((word, definition) for word, definition in pairs)


def phrases(rng: random.Random, words: Sequence[str], alphabet: int, count: int, length: int) -> list[str]:
    """``count`` different phrases of ``length`` words each, made of ``alphabet`` of ``words``, blanks before them.

    The fewer the words, the more of a phrase is needed to tell it from others. Raises ValueError when that many
    different ones cannot be made.
    """
    if count > alphabet**length:
        raise ValueError(f"{count} different phrases of {length} out of {alphabet} words cannot be made")
    chosen = rng.sample(words, alphabet)
    drawn = rng.sample(range(alphabet**length), count)
    return ["".join(f" {chosen[number // alphabet**place % alphabet]}" for place in range(length)) for number in drawn]


Document = dict[str, Any]
"""What lm-eval hands to a task's templates."""


def documents(task: str, seed: int, strata: Sequence[Sequence[Any]], make: Callable[..., Document]) -> list[Document]:
    """The documents of a task: for every stratum [count, *sizes] so many of ``make(rng, *sizes)``, the strata in turn.

    Each has a generator of its own, seeded with the task, the seed, the stratum and its index in it, so it is the same
    on every machine and whatever else is drawn. Training seeds begin with "train", which no task's name does.
    """
    in_turn = itertools.zip_longest(*([(sizes, index) for index in range(count)] for count, *sizes in strata))
    return [
        make(random.Random(f"{task}/{seed}/{sizes}/{index}"), *sizes)
        for turn in in_turn
        for sizes, index in filter(None, turn)
    ]


def as_test_split(drawn: Sequence[Document]) -> dict[str, Any]:
    """The documents as lm-eval takes them from a ``custom_dataset``."""
    from datasets import Dataset

    return {"test": Dataset.from_list(list(drawn))}


def prompt_and_answer(parts: Sequence[Part]) -> Document:
    """A document of a text with one question: what stands before its answer, and that answer.

    Raises ValueError when the answer is not the text's end.
    """
    *context, last = parts
    if not last.answer or any(part.answer for part in context):
        raise ValueError("a document must have one answer, at its end")
    return {"prompt": "".join(part.text for part in context), "answer": last.text}


def exact_match(document: Document, results: Sequence[str]) -> dict[str, float]:
    """lm-eval's ``process_results`` of generated answers: 1 if the words are the answer's, else 0."""
    return {"exact_match": float(results[0].split() == document["answer"].split())}


def _lines(name: str) -> tuple[str, ...]:
    return tuple((TEXT / name).read_text("utf-8").splitlines())
