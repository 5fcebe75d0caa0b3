"""How far a long command is, on standard error: a bar on a terminal, else a line now and then; nothing if quiet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dsmla_bench.cli.common import say
from dsmla_bench.cli.settings import current

T = TypeVar("T")

INTERVAL_S = 30.0
"""Seconds between two lines in a log."""


def counted(steps: Iterable[T], total: int, done: int = 0, name: Callable[[T], str] = str) -> Iterator[T]:
    """The steps as they come, each told by its name; ``done`` of ``total`` were before."""
    with progress(total, done) as tell:
        for step in steps:
            tell(name(step))
            yield step


@contextlib.contextmanager
def progress(total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
    """A function to be called with the name of every further step of ``total`` when it is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(total, done)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=current().quiet) as bar:
        task = bar.add_task("starting", total=total, completed=done)
        yield lambda name: bar.update(task, advance=1, description=name)


@dataclass
class Lines:
    """Progress for a log: "120 of 480 (25 %), about 3.1 minutes left: …" when a step is done after ``INTERVAL_S``."""

    total: int
    done: int = 0
    clock: Callable[[], float] = time.monotonic
    _taken: int = field(default=0, init=False)
    _began: float = field(init=False)
    _said: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self._said = self.clock()

    def __call__(self, name: str) -> None:
        """Count a step, and say so where it is time."""
        self.done, self._taken, now = self.done + 1, self._taken + 1, self.clock()
        if now - self._said < INTERVAL_S:
            return
        self._said = now
        left = (now - self._began) / self._taken * max(0, self.total - self.done)
        say(f"{self.done} of {self.total} ({self.done / self.total:.0%}), about {left / 60:.1f} minutes left: {name}")
