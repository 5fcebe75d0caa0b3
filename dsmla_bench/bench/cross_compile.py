"""Compiling many cases at once: what the cache knows is answered at once, the rest by several workers.

Cases that differ in their shape only often share a kernel, so they go to one worker, one after another: the first
compiles, and the others find its facts in the cache (``static_facts``).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

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
    yield from _Crew(config, unknown, workers).measurements()


def _known(bench: CompileBench, case: Case) -> Measurement | None:
    """``bench.known(case)``; None also where asking fails: a worker then fails too, and its failure becomes a row."""
    try:
        return bench.known(case)
    except Exception:  # whatever a provider or an operation raises belongs to the row, not to the sweep
        return None


@dataclass
class _Crew:
    """Threads with a worker process each that share out ``cases``, kernel by kernel."""

    config: WorkerConfig
    cases: Sequence[Case]
    workers: int
    _todo: queue.SimpleQueue[list[Case]] = field(default_factory=queue.SimpleQueue)
    _answers: queue.SimpleQueue[Measurement | Exception] = field(default_factory=queue.SimpleQueue)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def measurements(self) -> Generator[Measurement]:
        """One per case, as they come. Closing the generator ends the workers once they answered what they are at."""
        groups: dict[tuple[object, ...], list[Case]] = {}
        for case in self.cases:
            groups.setdefault((case.operation, case.format, case.revision, case.provider, case.arch), []).append(case)
        for group in groups.values():
            self._todo.put(group)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(self.workers, len(groups)))]
        for thread in threads:
            thread.start()
        try:
            for _ in self.cases:
                answer = self._answers.get()
                if isinstance(answer, Exception):
                    raise answer
                yield answer
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        worker = Worker(self.config)
        try:
            while not self._stopped.is_set():
                for case in self._todo.get_nowait():
                    if not self._stopped.is_set():
                        self._answers.put(worker.measure(case))
        except queue.Empty:
            pass
        except Exception as error:  # whatever went wrong in this thread is raised where the answers are awaited
            self._answers.put(error)
        finally:
            worker.stop()
