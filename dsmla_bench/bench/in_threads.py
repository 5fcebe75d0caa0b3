"""Several GPUs at once: a thread for each, and one reader of all that they answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Work:
    """What a thread does. ``interrupt``, called from another one, makes what it waits for return or raise at once."""

    run: Callable[[], None]
    interrupt: Callable[[], None]


def answers_of(
    works: Sequence[Work], answers: queue.SimpleQueue[Answer | Exception | None], close: Callable[[], None]
) -> Generator[Answer]:
    """Run each work in a thread of its own; yields what they put into ``answers``, until all of them have ended.

    What one raises is raised here. However it ends, ``close`` is called, which tells them to end, and they are waited
    for.
    """
    threads = [threading.Thread(target=_run, args=(work, answers), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            answer = answers.get()
            if answer is None:
                running -= 1
            elif isinstance(answer, Exception):
                raise answer
            else:
                yield answer
    finally:
        close()
        for work, thread in zip(works, threads, strict=True):
            while thread.is_alive():
                work.interrupt()
                thread.join(0.05)


def _run(work: Work, answers: queue.SimpleQueue[Answer | Exception | None]) -> None:
    try:
        work.run()
    except Exception as error:  # whatever went wrong in this thread is raised where the answers are awaited
        answers.put(error)
    finally:
        answers.put(None)
