"""Several GPUs or workers at once: a thread for each, and one reader of all that they answer."""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Answer = TypeVar("Answer")

END_TIMEOUT_S, TRY_AGAIN_S = 5.0, 0.05
"""How long works that were interrupted are waited for, and after how long what still runs is interrupted again."""


@dataclass(frozen=True)
class Work:
    """What a thread does. ``interrupt``, called from another one, makes what it waits for return or raise at once."""

    run: Callable[[], None]
    interrupt: Callable[[], None]


def answers_of(
    works: Sequence[Work], answers: queue.SimpleQueue[Answer | Exception | None], close: Callable[[], None]
) -> Generator[Answer]:
    """Run each work in a thread of its own; yields what they put into ``answers``, until all of them have ended.

    However it ends, ``close`` is called, which tells them to end, and what still runs is interrupted and waited for, a
    few seconds at most: what waits for a machine that is gone is left behind with a warning. Raises what a work
    raised, or else what an ``interrupt`` did, when all others have been interrupted.
    """
    threads = [threading.Thread(target=_run, args=(work, answers), daemon=True) for work in works]
    errors: list[BaseException] = []
    try:
        for thread in threads:
            thread.start()
        yield from _until_ended(answers, len(threads))
    except GeneratorExit:
        pass  # nobody reads on
    except BaseException as error:  # Ctrl-C too is raised when all have ended
        errors.append(error)
    close()
    errors += _interrupted(dict(zip(threads, works, strict=True)))
    if errors:
        raise errors[0]


def _until_ended(answers: queue.SimpleQueue[Answer | Exception | None], running: int) -> Generator[Answer]:
    """What so many threads answer until each has put None; raises the exceptions among it."""
    while running:
        answer = answers.get()
        if answer is None:
            running -= 1
        elif isinstance(answer, Exception):
            raise answer
        else:
            yield answer


def _interrupted(works: dict[threading.Thread, Work]) -> list[Exception]:
    """Interrupt all works until their threads have ended; what went wrong with that."""
    errors: list[Exception] = []
    give_up = time.monotonic() + END_TIMEOUT_S
    while running := _running(works):
        if time.monotonic() > give_up:
            left = f"{len(running)} of {len(works)} workers"
            warnings.warn(f"{left} did not answer within {END_TIMEOUT_S:g} s and are left behind", stacklevel=3)
            break
        for thread in running:
            try:
                works[thread].interrupt()
            except Exception as error:  # whatever it is, the others are interrupted too
                errors.append(error)
    return errors


def _running(threads: Collection[threading.Thread]) -> list[threading.Thread]:
    """Those that do not end in a moment."""
    for thread in threads:
        if thread.is_alive():
            thread.join(TRY_AGAIN_S / len(threads))
    return [thread for thread in threads if thread.is_alive()]


def _run(work: Work, answers: queue.SimpleQueue[Answer | Exception | None]) -> None:
    try:
        work.run()
    except Exception as error:  # whatever went wrong in this thread is raised where the answers are awaited
        answers.put(error)
    finally:
        answers.put(None)
