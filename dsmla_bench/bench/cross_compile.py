"""Compiling many cases at once: what the cache knows is answered at once, the rest by several workers.

Cases that differ in their shape only often share a kernel, so they go to one worker, one after another: the first
compiles, and the others find its facts in the cache (``static_facts``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace

from dsmla_bench.bench.cases import by_kernel
from dsmla_bench.bench.in_threads import Work, answers_of
from dsmla_bench.bench.offline import CompileBench
from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.kernels.interpreter import is_interpreting
from dsmla_bench.rows import Case, Measurement


def default_workers() -> int:
    """One worker for every CPU that this process may use."""
    return len(os.sched_getaffinity(0))


def compile_cases(cases: Sequence[Case], config: WorkerConfig, workers: int) -> Generator[Measurement]:
    """Compile every case in at most ``workers`` processes; yields one measurement per case, as they come."""
    config = replace(config, kind="compile")
    # A process that interprets cannot look a kernel up: Triton has made no compilable function of it.
    bench = None if is_interpreting() else CompileBench(config)
    unknown = []
    for case in cases:
        known = _known(bench, case) if bench else None
        if known is None:
            unknown.append(case)
        else:
            yield known
    with contextlib.closing(_Crew(config, unknown).measurements(workers)) as compiled:
        yield from compiled


def _known(bench: CompileBench, case: Case) -> Measurement | None:
    """``bench.known(case)``; None also where asking fails: a worker then fails too, and its failure becomes a row."""
    try:
        return bench.known(case)
    except Exception:  # whatever a provider or an operation raises belongs to the row, not to the sweep
        return None


class _Crew:
    """Workers that share out cases, kernel by kernel, a thread for each."""

    def __init__(self, config: WorkerConfig, cases: Sequence[Case]) -> None:
        self._config, self._closed = config, threading.Event()
        self._answers: queue.SimpleQueue[Measurement | Exception | None] = queue.SimpleQueue()
        self._todo: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
        for kernel in by_kernel(cases):
            self._todo.put(kernel)

    def measurements(self, workers: int) -> Generator[Measurement]:
        """One per case, as they come from at most so many workers. Closing the generator ends them at once."""
        crew = [Worker(self._config) for _ in range(min(workers, self._todo.qsize()))]
        works = [Work(functools.partial(self._compile, worker), worker.interrupt) for worker in crew]
        with contextlib.closing(answers_of(works, self._answers, self._closed.set)) as answers:
            yield from answers

    def _compile(self, worker: Worker) -> None:
        """The thread of a worker."""
        try:
            while True:
                for case in self._todo.get_nowait():
                    if self._closed.is_set():
                        return
                    self._answers.put(worker.measure(case))
        except queue.Empty:
            pass
        finally:
            worker.stop()
