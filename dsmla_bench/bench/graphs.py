"""Timing with captured graphs and CUDA events, and the ceilings measured the same way.

Before every timed graph the device is kept busy, by the flush or by a spinning kernel, until the graph has been handed
over whole: a start event on an idle device would put the host's work into the time. A sample is a slope: the time of a
graph with many launches less that of one with few, over the difference in launches. What an event pair and a graph
launch cost is in both and cancels; what remains is one launch in a full pipeline, with the cost of a graph node in it.
``measure_floor`` gives that cost, the time of an empty kernel.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

Call = Callable[[], None]

HAND_OVER_NS = 50_000
"""How long the device spins before a timed graph: longer than a graph launch takes on the host."""
SHORT_LAUNCHES = 4
LONG_LAUNCHES = 24
BUDGET_US = 4000.0
"""Longest graph worth replaying; slower operations get fewer launches."""


class Flusher:
    """Empties L2 of everything else by reading twice its size; it writes nothing, so it leaves no dirty line behind."""

    def __init__(self, l2_bytes: int, device: torch.device) -> None:
        self._data = torch.randint(1, 2**31, (2 * l2_bytes // 4 + 1,), dtype=torch.int32, device=device)
        self._sink = torch.zeros(1, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        """Read the buffer on the current stream."""
        count = self._data.numel()
        read_kernel[(triton.cdiv(count, 4096),)](self._data, self._sink, count, BLOCK=4096)


@triton.jit
def read_kernel(data_ptr, sink_ptr, count, BLOCK: tl.constexpr):
    """Read ``count`` int32. It never stores: no sum of positive values is -1, which no compiler can know."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(data_ptr + index, index < count, other=0) & 0xFFFF)
    if total == -1:
        tl.store(sink_ptr, total)


@triton.jit
def empty_kernel(out_ptr):
    """Nothing: what it takes is what a launch costs."""


@triton.jit
def spin_kernel(nanoseconds):
    """Keep one multiprocessor busy for about ``nanoseconds``."""
    start = globaltimer()
    now = start
    while now - start < nanoseconds:
        now = globaltimer()


def spin() -> None:
    """Keep the device busy, and L2 as it is, while the host hands over what comes next."""
    spin_kernel[(1,)](HAND_OVER_NS)


@triton.jit
def copy_kernel(source_ptr, target_ptr, count, BLOCK: tl.constexpr):
    """Copy ``count`` int32."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + index, tl.load(source_ptr + index, index < count), index < count)


def capture(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """A graph of the calls, one after another."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def event_time_us(work: Call, before: Call = spin) -> float:
    """Time of ``work`` on the current stream between two events; ``before`` keeps the device busy until the first."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def launches_for(estimate_us: float) -> tuple[int, int]:
    """Launches of the short and the long graph for an operation of about ``estimate_us``."""
    if estimate_us * LONG_LAUNCHES <= BUDGET_US:
        return SHORT_LAUNCHES, LONG_LAUNCHES
    return 1, 4


def slope_samples(short: Sequence[Call], long: Sequence[Call], replays: int, before: Call = spin) -> list[float]:
    """``replays`` samples of µs per launch: (long - short) / (launches of long - launches of short).

    The first replay of each graph is thrown away: it uploads the graph.
    """
    short_graph, long_graph = capture(short), capture(long)
    samples = []
    for replay in range(replays + 1):
        short_us = event_time_us(short_graph.replay, before)
        long_us = event_time_us(long_graph.replay, before)
        if replay:
            samples.append((long_us - short_us) / (len(long) - len(short)))
    return samples


def measure_floor(device: torch.device, replays: int) -> list[float]:
    """Samples of µs per launch of an empty kernel."""
    target = torch.zeros(1, dtype=torch.int32, device=device)
    calls = [lambda: empty_kernel[(1,)](target)] * LONG_LAUNCHES
    calls[0]()
    return slope_samples(calls[:SHORT_LAUNCHES], calls, replays)


def measure_copy_gbps(device: torch.device, replays: int, nbytes: int = 2**30) -> float:
    """Bandwidth of a copy kernel over ``nbytes`` in and as many out, GB/s of bytes read + written: the ceiling.

    ``Tensor.copy_`` would become a memcpy node in a graph, which is slower than a kernel.
    """
    source = torch.randint(1, 2**31, (nbytes // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    count = source.numel()

    def copy() -> None:
        copy_kernel[(triton.cdiv(count, 4096),)](source, target, count, BLOCK=4096)

    copy()
    samples = slope_samples([copy], [copy] * 4, replays)
    return 2 * nbytes / statistics.median(samples) / 1e3


def quantum_us(samples: Sequence[float]) -> float | None:
    """The smallest non-zero difference between samples: what the clock resolves. None when all are equal."""
    distinct = sorted(set(samples))
    gaps = [b - a for a, b in itertools.pairwise(distinct)]
    return min((gap for gap in gaps if gap > 1e-9), default=None)
