"""What the embedded model is trained on, step by step: lessons from the tasks' own generators, harder as they succeed.

A ``Lesson`` names a task, a size and a seed; ``batch`` makes its tokens, a pure function of the lesson and the text.
``Curriculum`` hands lessons out. Every task has a level; a lesson's size is drawn between a quarter of it and it, so
that no fixed length is learned. When the running accuracy of lessons of the level passes 0.9, the level grows by a
quarter. Every ``LESSONS_PER_STEP`` lessons make one step of the optimizer, and half of them are of prose: steps of one
task at a time undo each other.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from dsmla_bench.evals.embedded import MODEL
from dsmla_bench.evals.tasks import copy, definitions, needle, prose, recall, variable_tracking
from dsmla_bench.evals.tasks.text import Part, symbols

LESSONS_PER_STEP = 4
GROWTH = 1.25
ENOUGH_ACCURACY = 0.9
ENOUGH_LESSONS = 4
MOST_ANSWERS = 64
MOST_TEXTS = 512


class Lesson(NamedTuple):
    """One training step: texts of a task in a size, at a level of the task, drawn by a generator with this seed."""

    task: str
    level: int
    size: int
    seed: str


class Text:
    """The training text: lines of prose, and definitions of symbols."""

    def __init__(self, folder: Path) -> None:
        self.prose = _lines(folder / "prose.txt")
        known = set(symbols())
        pairs = (line.split("\t") for line in _lines(folder / "definitions.tsv"))
        self.definitions = [(w, d) for w, d in pairs if w in known and len(d) <= definitions.LONGEST]


Draw = Callable[[random.Random, random.Random, int, Text], list[Part]]
"""Draws one text of a lesson: from a generator of its own and one that is the same for all texts of the lesson (what
they have in common besides their size), the size, and the training text."""


def _recall(rng: random.Random, _: random.Random, size: int, text: Text) -> list[Part]:
    return _recalled(rng, recall.one_symbol_keys(rng, size))


def _recall_of_two(rng: random.Random, _: random.Random, size: int, text: Text) -> list[Part]:
    return _recalled(rng, recall.two_symbol_keys(rng, size))


def _recalled(rng: random.Random, drawn_keys: list[str]) -> list[Part]:
    listed = recall.with_values(rng, drawn_keys)
    # Asked with replacement: without, the values not asked for yet are a guess that is learned instead of the keys.
    return recall.layout(listed, rng.choices(listed, k=max(4, min(len(listed), MOST_ANSWERS))))


def _variable_tracking(rng: random.Random, shape: random.Random, size: int, text: Text) -> list[Part]:
    hops = shape.randint(1, min(size, 12))
    chains = min(size // hops, len(symbols()) // (hops + 1))
    return variable_tracking.draw(rng, chains, hops, min(chains, max(1, MOST_ANSWERS // hops)))


def _copy(rng: random.Random, _: random.Random, size: int, text: Text) -> list[Part]:
    return copy.draw(rng, size, len(symbols()))


def _copy_of_few(rng: random.Random, shape: random.Random, size: int, text: Text) -> list[Part]:
    return copy.draw(rng, size, shape.choice((16, 32, 64, 128)))


def _needle(rng: random.Random, shape: random.Random, size: int, text: Text) -> list[Part]:
    needles = shape.randint(1, 8)
    return needle.draw(rng, text.prose, size, needles, needles)


def _definitions(rng: random.Random, _: random.Random, size: int, text: Text) -> list[Part]:
    return definitions.draw(rng, text.definitions, size, min(size, MOST_ANSWERS // 4))


def _prose(rng: random.Random, _: random.Random, size: int, text: Text) -> list[Part]:
    return prose.draw(rng, text.prose, size)


@dataclass(frozen=True)
class Course:
    """How a task is taught: its smallest size, its level at first and at most, its share of lessons, its texts."""

    smallest: int
    start: int
    end: int
    share: float
    draw: Draw


COURSES = {
    "recall": Course(2, 32, 256, 0.2, _recall),  # pairs
    "recall_of_two": Course(2, 32, 256, 0.15, _recall_of_two),  # pairs
    "copy": Course(4, 64, 256, 0.05, _copy),  # words
    "copy_of_few": Course(4, 32, 256, 0.15, _copy_of_few),  # words
    "variable_tracking": Course(2, 4, 200, 0.2, _variable_tracking),  # links
    "needle": Course(100, 400, 4000, 0.1, _needle),  # characters
    "definitions": Course(2, 4, 48, 0.15, _definitions),  # entries
    "prose": Course(2000, 2000, 2000, 0.0, _prose),  # characters
}


@dataclass
class Level:
    """Where a task stands."""

    size: float
    accuracy: float = 0.0
    lessons: int = 0

    @property
    def level(self) -> int:
        """The largest size of its lessons."""
        return math.ceil(self.size)

    def learn(self, lesson: Lesson, accuracy: float, end: int) -> None:
        """Take in the accuracy of a lesson of this level, and grow if it is time.

        Lessons are made a few steps ahead, so some of an earlier level still come in after it grew; they do not count.
        """
        if lesson.level != self.level:
            return
        self.accuracy += (accuracy - self.accuracy) / ENOUGH_LESSONS
        self.lessons += 1
        if self.accuracy > ENOUGH_ACCURACY and self.lessons >= ENOUGH_LESSONS:
            self.size, self.lessons = min(float(end), self.size * GROWTH), 0


@dataclass
class Curriculum:
    """Lessons in order, for a seed and the accuracies that were reported on the way."""

    seed: int
    levels: dict[str, Level] = field(default_factory=lambda: {t: Level(c.start) for t, c in COURSES.items()})

    def __iter__(self) -> Iterator[Lesson]:
        rng = random.Random(self.seed)
        for number in itertools.count():
            (task,) = rng.choices(list(COURSES), [course.share for course in COURSES.values()])
            if number % 2 == 0:
                task = "prose"
            level = self.levels[task].level
            size = rng.randint(max(COURSES[task].smallest, level // 4), level)
            yield Lesson(task, level, size, f"train/{self.seed}/{number}")

    def report(self, lesson: Lesson, accuracy: float) -> None:
        """The share of a lesson's answer tokens that the model had right."""
        self.levels[lesson.task].learn(lesson, accuracy, COURSES[lesson.task].end)


def draw(lesson: Lesson, text: Text, rng: random.Random) -> list[Part]:
    """One text of a lesson."""
    return COURSES[lesson.task].draw(rng, random.Random(f"{lesson.seed}/shape"), lesson.size, text)


def batch(lesson: Lesson, text: Text, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [texts, length] int64 and which of them are answers, bool: about ``tokens`` of them in all."""
    rng = random.Random(lesson.seed)
    first = encoded([draw(lesson, text, rng)])
    texts = max(1, min(MOST_TEXTS, tokens // len(first[0][0])))
    return padded(first + encoded([draw(lesson, text, rng) for _ in range(texts - 1)]))


def encoded(texts: Sequence[Sequence[Part]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per text: its token ids, int64, and which of them end inside an answer, bool."""
    encodings = tokenizer().encode_batch(["".join(part.text for part in parts) for parts in texts])
    return [
        (np.array(encoding.ids), _answers(parts, np.array([end for _, end in encoding.offsets])))
        for parts, encoding in zip(texts, encodings, strict=True)
    ]


def padded(sequences: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of equal length, a multiple of 8: token 0, which is no answer, at the end of the shorter ones."""
    length = -(-max(len(ids) for ids, _ in sequences) // 8) * 8
    shape = len(sequences), length
    tokens, answers = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for row, (ids, is_answer) in enumerate(sequences):
        tokens[row, : len(ids)], answers[row, : len(ids)] = ids, is_answer
    return tokens, answers


@functools.cache
def tokenizer() -> Tokenizer:
    """The embedded model's."""
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def _answers(parts: Sequence[Part], ends: np.ndarray) -> np.ndarray:
    """Which tokens, given where in the text they end, belong to an answer."""
    limits = np.cumsum([len(part.text) for part in parts])
    answer = np.array([part.answer for part in parts])
    return answer[np.searchsorted(limits, ends)]


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()
