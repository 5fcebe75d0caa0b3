"""Timing with the device's own activity records (CUPTI, through torch.profiler).

The launches to be timed are captured into one graph with a separator, an empty kernel, ahead of each. While the graph
is replayed the profiler records start and end of everything that the device does, in nanoseconds; whatever starts
between two separators, on any stream, belongs to the launch between them. A launch has a span, from its first start to
its last end, which is its time, and the sum of its records' durations. Launch cost on the host is in neither.

A replay whose records are not complete is not used: the profiler may miss the first ones of a process, and a launch
that left no record at all would otherwise count as nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler import profile

from dsmla_bench.bench.device import Call, MeasurementError
from dsmla_bench.bench.kernels import ReadyGraph, separator, separator_name

ATTEMPTS = 6
"""Profiler sessions before giving up on complete records."""


@dataclass(frozen=True)
class Record:
    """One thing that the device did: a kernel, a copy or a fill. Times are in ns."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class LaunchTime:
    """One launch of an operation: from its first start to its last end, and the sum over its records, µs."""

    span_us: float
    sum_us: float


def separated(launches: Sequence[Call]) -> list[Call]:
    """The launches with a separator ahead of, between and behind them: what ``activity_times`` takes as a graph."""
    return [step for launch in launches for step in (separator, launch)] + [separator]


def activity_times(graph: ReadyGraph, launches: int, skip: int, replays: int) -> list[LaunchTime]:
    """Times of the launches after the first ``skip`` of every replay of a graph of ``separated`` launches.

    Raises MeasurementError when the records stay incomplete.
    """
    problem = ""
    for _ in range(ATTEMPTS):
        records, early = _record(graph, replays)
        try:
            return launch_times(records, launches, skip, early)
        except MeasurementError as error:
            problem = str(error)
    raise MeasurementError(f"{problem} in {ATTEMPTS} attempts")


def launch_times(records: Sequence[Record], launches: int, skip: int, early: Sequence[bool]) -> list[LaunchTime]:
    """Assign records to launches by the separators ahead of, between and behind them.

    ``early`` says of every replay whether the device reached it too early: such a one left records, but tells no time.
    Every launch is the same work and must leave the same records. Raises MeasurementError for a missing separator, a
    launch without a record or with other records than the first one, or one that runs into the next.
    """
    ordered = sorted(records, key=lambda record: record.start_ns)
    marks = [index for index, record in enumerate(ordered) if separator_name in record.name]
    expected = len(early) * (launches + 1)
    if len(marks) != expected:
        raise MeasurementError(f"the profiler recorded {len(marks)} of {expected} separators")
    times: list[LaunchTime] = []
    usual: list[str] | None = None
    for replay in (index for index, too_early in enumerate(early) if not too_early):
        own = marks[replay * (launches + 1) : (replay + 1) * (launches + 1)]
        for launch in range(skip, launches):
            work = ordered[own[launch] + 1 : own[launch + 1]]
            times.append(_launch_time(work, ordered[own[launch + 1]]))
            names = sorted(record.name for record in work)
            if names != (usual := usual or names):
                raise MeasurementError(f"the profiler recorded {len(names)} items for a launch and {len(usual)} before")
    return times


def _launch_time(work: Sequence[Record], next_separator: Record) -> LaunchTime:
    if not work:
        raise MeasurementError("the profiler recorded nothing for a launch")
    end = max(record.end_ns for record in work)
    if end > next_separator.end_ns:
        raise MeasurementError("work of a launch went on after the next one had begun: it was not joined to its stream")
    span_ns = end - min(record.start_ns for record in work)
    return LaunchTime(span_ns / 1e3, sum(record.end_ns - record.start_ns for record in work) / 1e3)


def _record(graph: ReadyGraph, replays: int) -> tuple[list[Record], list[bool]]:
    """Everything that the device did during ``replays`` good replays, and of each replay whether it was too early."""
    found: list[Record] = []
    early: list[bool] = []
    torch.cuda.synchronize()
    # torch.profiler.profile is the same behind an import of torch's compiler, 4 s of a process's start.
    with profile(use_kineto=True, use_cpu=False, use_device="cuda", acc_events=True) as session:
        for _ in range(replays):
            before = graph.early_replays
            graph.timed_replay()
            early += [True] * (graph.early_replays - before) + [False]
        torch.cuda.synchronize()
    for event in session.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            found.append(Record(event.name(), event.start_ns(), event.end_ns()))
    return found, early
