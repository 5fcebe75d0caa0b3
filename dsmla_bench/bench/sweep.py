"""The sweep: every case in every process, in random order, each answer written down before the next question.

``measure`` runs on a device: ``processes`` workers one after another, each with an order of its own, because what
differs between processes (addresses, the mapping of programs to multiprocessors) does not show within one. A case that
an earlier process skipped or found wrong is not asked again. ``bench.fleet`` does the same on several devices at once.
``check_offline`` runs where there is no device: each case once through the compiler and once through the interpreter.

Both are generators over finished measurements, so that the caller can draw a progress bar and stop at any time. Both
append to the run as they go and leave out what it already holds, so that a sweep that was cut short can be resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence

from dsmla_bench.bench.cases import shuffled
from dsmla_bench.bench.cross_compile import compile_cases, default_workers
from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.bench.workers import Workers
from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Measurement


def measure(run: Run, cases: Sequence[Case], config: WorkerConfig, processes: int) -> Generator[Measurement]:
    """Measure every case in ``processes`` fresh processes; yields and appends each measurement."""
    with contextlib.closing(Workers(config, processes)) as workers:
        for process in range(processes):
            yield from _measure(run, cases, workers, process)


def measure_process(run: Run, cases: Sequence[Case], config: WorkerConfig, process: int) -> Generator[Measurement]:
    """Measure every case in one fresh process; yields and appends each measurement."""
    with contextlib.closing(Workers(config, process + 1)) as workers:
        yield from _measure(run, cases, workers, process)


def _measure(run: Run, cases: Sequence[Case], workers: Workers, process: int) -> Generator[Measurement]:
    for case in lacking(run.measurements, cases, process, workers.config.seed):
        measurement = workers.measure(case, process)
        run.append(measurement)
        yield measurement


def lacking(measurements: Sequence[Measurement], cases: Sequence[Case], process: int, seed: int) -> list[Case]:
    """The cases that ``process`` still has to measure, in its order."""
    settled = {m.case for m in measurements if m.status != "ok" or m.process == process}
    return [case for case in shuffled(list(dict.fromkeys(cases)), seed + process) if case not in settled]


def check_offline(
    run: Run, cases: Sequence[Case], config: WorkerConfig, compilers: int | None = None
) -> Generator[Measurement]:
    """Compile every case and interpret those that compiled; yields and appends one measurement per case.

    ``compilers`` processes compile, by default one for every CPU, while one interprets.
    """
    interpreter = Worker(dataclasses.replace(config, kind="interpret"))
    known = {m.case for m in run.measurements}
    missing = [case for case in dict.fromkeys(cases) if case not in known]
    try:
        with contextlib.closing(compile_cases(missing, config, compilers or default_workers())) as compiled:
            for measurement in compiled:
                if measurement.status == "compiled":
                    measurement = with_gate(measurement, interpreter.measure(measurement.case))
                run.append(measurement)
                yield measurement
    finally:
        interpreter.stop()


def with_gate(compiled: Measurement, gated: Measurement) -> Measurement:
    """A compiled case with what the interpreter found: its facts, and its status where that is not ok."""
    facts = {**compiled.facts, **gated.facts}
    if gated.status == "ok":
        return dataclasses.replace(compiled, facts=facts)
    return dataclasses.replace(compiled, status=gated.status, reason=gated.reason, facts=facts)
