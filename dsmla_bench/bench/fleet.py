"""A sweep on several GPUs at once, of this machine or of a cluster: a thread and a lane for each.

A lane is one GPU and whoever measures on it, one case at a time. It measures its share (``bench.spread``) as a sweep of
one GPU does, process after process, and writes each answer down before it asks the next question.

A lane can be lost: its process is killed, or its machine goes away. What it was asked last is asked again. The lane is
started anew where that is possible; else what it lacks is shared out over the other GPUs of its architecture. A case
that takes a second lane with it is not asked a third time: its row is a ``runtime_error``. Losses are warned of, and
listed in the manifest under ``lost``.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import warnings
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.in_threads import Work, answers_of
from dsmla_bench.bench.spread import spread
from dsmla_bench.bench.sweep import lacking
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.bench.workers import Workers
from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Measurement

ALLOWED_LOSSES = 2
"""As many lanes may one case take with it."""


class LaneLostError(RuntimeError):
    """Whoever measures on a GPU is gone; the message says what is known of it."""


class NoLaneLeftError(ValueError):
    """Some cases were not measured because every GPU of their architecture is gone."""


class Lane(Protocol):
    """One GPU and whoever measures on it. Only ``interrupt`` may be called from another thread than the lane's."""

    gpu: Gpu

    def measure(self, case: Case, process: int) -> Measurement:
        """The measurement of ``case`` in a fresh process of this number. Raises LaneLostError."""
        ...

    def restart(self) -> bool:
        """Start again after a loss, on the same GPU; False where that is not possible."""
        ...

    def interrupt(self) -> None:
        """Make ``measure``, which is waiting for an answer, return or raise at once."""
        ...

    def close(self) -> None:
        """Give the GPU back."""
        ...


class LocalLane(Workers):
    """A GPU of this machine. It is never lost: what its workers do not survive is a row's status."""

    def __init__(self, config: WorkerConfig, gpu: Gpu, processes: int) -> None:
        super().__init__(on_gpu(config, gpu), processes)
        self.gpu = gpu

    def restart(self) -> bool:
        """There is nothing to start again."""
        return False


def on_gpu(config: WorkerConfig, gpu: Gpu) -> WorkerConfig:
    """The configuration of a worker on this GPU of this machine."""
    return replace(config, device=gpu.local_index, device_columns=gpu.columns)


@dataclass(frozen=True)
class Loss:
    """A lane that was lost, with as many measurements ahead of it; ``restarted``: it goes on with them itself."""

    gpu: Gpu
    reason: str
    unfinished: int
    restarted: bool

    def __str__(self) -> str:
        then = "is started again and goes on with" if self.restarted else "is lost; other devices take over"
        return f"{self.gpu} {then} {self.unfinished} measurements ({self.reason})"


class Fleet:
    """Lanes that measure their shares of a run. ``shares``: uuid of a lane's GPU → its cases."""

    def __init__(
        self, run: Run, lanes: Sequence[Lane], shares: Mapping[str, Sequence[Case]], processes: int, seed: int
    ) -> None:
        self._run, self._lanes, self._processes, self._seed = run, lanes, processes, seed
        self._shares = _Shares([lane.gpu for lane in lanes], shares)
        self._answers: queue.SimpleQueue[Measurement | Loss | Exception | None] = queue.SimpleQueue()
        self._losses: Counter[str] = Counter()
        self._writing = threading.Lock()

    def measurements(self) -> Generator[Measurement]:
        """Measure what the run lacks; yields each measurement, which is appended already.

        Raises NoLaneLeftError when everything else is measured, and whatever went wrong in a lane.
        """
        works = [Work(functools.partial(self._drive, lane), lane.interrupt) for lane in self._lanes]
        with contextlib.closing(answers_of(works, self._answers, self._shares.close)) as answers:
            for answer in answers:
                if isinstance(answer, Measurement):
                    yield answer
                else:
                    self._note(answer)
        if unmeasured := [case for case in self._shares.left_over if self._is_lacking(case)]:
            archs = ", ".join(sorted({case.arch for case in unmeasured}))
            raise NoLaneLeftError(f"no {archs} device is left, and {len(unmeasured)} cases are not measured")

    def _note(self, loss: Loss) -> None:
        self._run.manifest.setdefault("lost", []).append(asdict(loss))
        self._run.write_manifest()
        warnings.warn(str(loss), stacklevel=2)

    def _drive(self, lane: Lane) -> None:
        """The thread of a lane."""
        with contextlib.closing(lane):
            while cases := self._shares.take(lane.gpu):
                try:
                    self._measure(lane, cases)
                except LaneLostError as error:
                    if not self._replace(lane, cases, str(error)):
                        break

    def _measure(self, lane: Lane, cases: Sequence[Case]) -> None:
        for process in range(self._processes):
            for case in self._lacking(cases, process):
                self._append(self._ask(lane, case, process))
                if self._shares.closed:
                    return

    def _lacking(self, cases: Sequence[Case], process: int) -> list[Case]:
        with self._writing:
            return lacking(self._run.measurements, cases, process, self._seed)

    def _is_lacking(self, case: Case) -> bool:
        return any(self._lacking([case], process) for process in range(self._processes))

    def _append(self, measurement: Measurement) -> None:
        """Write a measurement down and hand it on, unless the sweep is over."""
        with self._writing:
            if self._shares.closed:
                return
            try:
                self._run.append(measurement)
            except Exception:
                self._shares.close()  # the file may end in a part of this row: nothing may come behind it
                raise
        self._answers.put(measurement)

    def _ask(self, lane: Lane, case: Case, process: int) -> Measurement:
        try:
            return lane.measure(case, process)
        except LaneLostError as error:
            self._losses[case.row_id] += 1
            if self._losses[case.row_id] >= ALLOWED_LOSSES:
                reason = f"it was lost with its process {ALLOWED_LOSSES} times: {error}"
                self._append(Measurement(case, process, "runtime_error", reason, facts=lane.gpu.columns))
            raise

    def _replace(self, lane: Lane, cases: Sequence[Case], reason: str) -> bool:
        """Start a lost lane again or give its cases to others; whether it goes on."""
        if self._shares.closed:
            return False
        restarted = lane.restart()
        unfinished = sum(len(self._lacking(cases, process)) for process in range(self._processes))
        self._answers.put(Loss(lane.gpu, reason, unfinished, restarted))
        self._shares.give_back(lane.gpu, cases, restarted=restarted)
        return restarted


class _Shares:
    """What every lane has to measure, shared by their threads."""

    def __init__(self, gpus: Sequence[Gpu], shares: Mapping[str, Sequence[Case]]) -> None:
        self._gpus = list(gpus)
        self._waiting = {gpu.uuid: list(shares.get(gpu.uuid, ())) for gpu in gpus}
        self._busy: set[str] = set()
        self._changed = threading.Condition()
        self.left_over: list[Case] = []
        self.closed = False

    def take(self, gpu: Gpu) -> list[Case]:
        """What is there for this GPU, waiting for what others may lose; nothing when all is measured or closed."""
        with self._changed:
            self._busy.discard(gpu.uuid)
            self._changed.notify_all()
            while not self._waiting[gpu.uuid] and not self.closed and (self._busy or any(self._waiting.values())):
                self._changed.wait()
            taken = [] if self.closed else self._waiting[gpu.uuid]
            self._waiting[gpu.uuid] = []
            if taken:
                self._busy.add(gpu.uuid)
            return taken

    def give_back(self, gpu: Gpu, cases: Sequence[Case], *, restarted: bool) -> None:
        """Keep the cases of a lost lane for it once it is ``restarted``, else share them out over its like."""
        with self._changed:
            self._busy.discard(gpu.uuid)
            cases = [*cases, *self._waiting[gpu.uuid]]
            self._waiting[gpu.uuid] = []
            if not restarted:
                self._gpus.remove(gpu)
            heirs = [gpu] if restarted else [other for other in self._gpus if other.arch == gpu.arch]
            if not heirs:
                self.left_over += cases
            for uuid, share in spread(cases, heirs).items() if heirs else ():
                self._waiting[uuid] += share
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is left to take."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
