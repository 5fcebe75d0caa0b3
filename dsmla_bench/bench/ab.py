"""Paired measuring: two ways to start dsmla-bench take turns on one device, process by process.

``alternate`` drives two ``Side``s, each a command such as ``dsmla-bench kernels … --paired ID`` of an install of its
own, and asks them for one process at a time in the order ABBA: base, head, head, base, … Whatever drifts with time
(clock, temperature) then falls on both, and neighbours in time are a pair. Each side plans, measures and writes its own
run with its own code; process r of both runs is pair r. A process measures all rows in one worker, in the same order on
both sides.

Parent and side speak in lines over the side's standard input and output:

    parent → side   {"process": 3, "rows": null}     measure process 3; ``rows`` names row_ids, null means all
    side → parent   dsmla-bench turn {"run": PATH}   once, when it is ready: the run that it writes
                    dsmla-bench turn {"measured": 96}   after every turn

Other lines of a side are passed on to standard error. A side finishes its run when its input ends, so that none
outlives its parent for more than a turn, and leaves out what the run holds already, so that a pair can be asked for
again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import IO, Any

from dsmla_bench.rows import Measurement

ANSWER = "dsmla-bench turn "
MeasureProcess = Callable[[int, Collection[str] | None], Iterable[Measurement]]
"""Measure one process of a run, all rows or those with these row_ids; yields what was measured."""


class SideError(ValueError):
    """A side that ended before its turns were over. ``code`` is its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Side:
    """The parent's end of one side: ``name`` is "base" or "head", ``command`` starts it."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self.command, self._is_ready = name, list(command), False
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C is the parent's to answer
            )
        except OSError as error:
            raise ValueError(f"--{name} {self.command[0]}: cannot be started ({error.strerror})") from error

    def wait_until_ready(self) -> str:
        """The folder or URL of the run that this side writes. Raises SideError when it ends instead."""
        run = str(self._answer()["run"])
        self._is_ready = True
        return run

    def measure(self, process: int, rows: Collection[str] | None = None) -> int:
        """Have one process measured; how many measurements that took. Raises SideError when the side ends instead."""
        assert self._process.stdin is not None
        turn = {"process": process, "rows": None if rows is None else sorted(rows)}
        try:
            self._process.stdin.write(json.dumps(turn) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return int(self._answer()["measured"])

    def finish(self) -> None:
        """Let the side finish its run, and wait for that."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; whoever asked it last was told
            self._process.stdin.close()
        self._process.wait()

    def interrupt(self) -> None:
        """Stop the side in the middle of a turn; it still finishes its run, if it has begun one."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT if self._is_ready else signal.SIGTERM)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return dict(json.loads(line.removeprefix(ANSWER)))
            sys.stderr.write(line)
        raise self._ended()

    def _ended(self) -> SideError:
        code = self._process.wait()
        return SideError(f"--{self.name} ended with exit code {code} before it was done: {self.command}", code)


def alternate(
    base: Side, head: Side, processes: Iterable[int], rows: Collection[str] | None = None
) -> Iterator[tuple[int, str]]:
    """Measure these processes on both sides in the order ABBA; yields process and side before each turn."""
    for process in processes:
        for side in (base, head) if process % 2 == 0 else (head, base):
            yield process, side.name
            side.measure(process, rows)


def take_turns(run: str, measure: MeasureProcess, turns: Iterable[str], answers: IO[str]) -> None:
    """The side's end: measure what each line of ``turns`` asks for, until they end."""
    _say(answers, {"run": run})
    for line in turns:
        turn = json.loads(line)
        measured = sum(1 for _ in measure(turn["process"], turn["rows"]))
        _say(answers, {"measured": measured})


def answers_only() -> IO[str]:
    """Standard output for answers alone: whatever else is printed goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: IO[str], content: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(content), file=answers, flush=True)
