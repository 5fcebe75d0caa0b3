"""Timing with captured graphs and CUDA events.

Before every timed graph the device is kept busy, by the flush or by a spinning kernel, until the graph has been handed
over whole: a start event on an idle device would put the host's work into the time. A sample is a slope: the time of a
graph with many launches less that of one with few, over the difference in launches. What an event pair and a graph
launch cost is in both and cancels; what remains is one launch in a full pipeline, with the cost of a graph node in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from dsmla_bench.bench.device import Call
from dsmla_bench.bench.kernels import ReadyGraph

SHORT_LAUNCHES = 4
LONG_LAUNCHES = 24
BUDGET_US = 4000.0
"""Longest graph worth replaying; slower operations get fewer launches."""


def event_time_us(work: Call, before: Call) -> float:
    """Time of ``work`` on the current stream between two events; ``before`` keeps the device busy until the first."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def estimate_us(call: Call) -> float:
    """About how long one launch takes: enough to choose how many launches to time."""
    graph = ReadyGraph([call])
    return min(event_time_us(graph.replay, graph.prepare) for _ in range(3))


def launches_for(estimate_us: float) -> tuple[int, int]:
    """Launches of the short and the long graph for an operation of about ``estimate_us``."""
    if estimate_us * LONG_LAUNCHES <= BUDGET_US:
        return SHORT_LAUNCHES, LONG_LAUNCHES
    return 1, 4


def slope_samples(short: int, launches: Sequence[Call], replays: int, before: Call | None = None) -> list[float]:
    """``replays`` samples of µs per launch, from graphs of the first ``short`` and of all ``launches``.

    ``before`` runs ahead of every graph, outside of the time.
    """
    short_graph, long_graph = ReadyGraph(launches[:short], before), ReadyGraph(launches, before)
    samples = []
    for _ in range(replays):
        short_us = event_time_us(short_graph.replay, short_graph.prepare)
        long_us = event_time_us(long_graph.replay, long_graph.prepare)
        samples.append(slope_us(short_us, short, long_us, len(launches)))
    return samples


def slope_us(short_us: float, short: int, long_us: float, long: int) -> float:
    """µs per launch from the times of ``short`` and of ``long`` launches: what both have in common cancels."""
    return (long_us - short_us) / (long - short)


def quantum_us(samples: Sequence[float]) -> float | None:
    """The smallest non-zero difference between samples: what the clock resolves. None when all are equal."""
    distinct = sorted(set(samples))
    gaps = [b - a for a, b in itertools.pairwise(distinct)]
    return min((gap for gap in gaps if gap > 1e-9), default=None)
