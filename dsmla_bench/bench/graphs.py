"""Timing with captured graphs and CUDA events.

Before every timed graph the device is kept busy, by the flush or by a spinning kernel, until the graph has been handed
over whole: a start event on an idle device would put the host's work into the time. A sample is a slope: the time of a
graph with many launches less that of one with few, over the difference in launches. What an event pair and a graph
launch cost is in both and cancels; what remains is one launch in a full pipeline, with the cost of a graph node in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dsmla_bench.bench.device import Call
from dsmla_bench.bench.kernels import ReadyGraph

SHORT_LAUNCHES = 4
LONG_LAUNCHES = 24
SAME_US = 1e-5
"""Samples closer than this differ by arithmetic: events are read in whole ns, and a slope divides by launches."""
BUDGET_US = 4000.0
"""Longest graph worth replaying; slower operations get fewer launches."""


def estimate_us(call: Call) -> float:
    """About how long one launch takes: enough to choose how many launches to time."""
    graph = ReadyGraph([call])
    return min(graph.timed_replay() for _ in range(3))


def launches_for(estimate_us: float) -> tuple[int, int]:
    """Launches of the short and the long graph for an operation of about ``estimate_us``."""
    if estimate_us * LONG_LAUNCHES <= BUDGET_US:
        return SHORT_LAUNCHES, LONG_LAUNCHES
    return 1, 4


def slope_samples(short: ReadyGraph, long: ReadyGraph, launches: tuple[int, int], replays: int) -> list[float]:
    """``replays`` samples of µs per launch, from graphs of ``launches[0]`` and of ``launches[1]`` launches."""
    return [slope_us(short.timed_replay(), launches[0], long.timed_replay(), launches[1]) for _ in range(replays)]


def slope_us(short_us: float, short: int, long_us: float, long: int) -> float:
    """µs per launch from the times of ``short`` and of ``long`` launches: what both have in common cancels."""
    return (long_us - short_us) / (long - short)


def quantum_us(samples: Sequence[float]) -> float | None:
    """The smallest non-zero difference between samples: what the clock resolves. None when all are equal."""
    distinct = sorted(set(samples))
    gaps = [b - a for a, b in itertools.pairwise(distinct)]
    return min((gap for gap in gaps if gap > SAME_US), default=None)
