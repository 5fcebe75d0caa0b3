"""The harness's own small kernels: what a launch costs, what memory can do, and clocks to hold others against."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from dsmla_bench.bench.device import Call, MeasurementError

COPY_CONFIGURATIONS = tuple((block, warps) for block in (1024, 2048, 4096, 8192) for warps in (4, 8))
"""int32 per program and warps of the copy kernels that the ceiling is the best of."""
READ_BLOCK = 4096


@triton.jit
def separator_kernel():
    """Nothing. Its record tells the launches of a profiled graph apart."""


separator_name = "separator_kernel"


def separator() -> None:
    """Launch the separator."""
    separator_kernel[(1,)]()


@triton.jit
def empty_kernel():
    """Nothing: what it takes is what a launch costs."""


def empty() -> None:
    """Launch an empty kernel."""
    empty_kernel[(1,)]()


@triton.jit
def copy_kernel(source_ptr, target_ptr, count, BLOCK: tl.constexpr):
    """Copy ``count`` int32."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target_ptr + index, tl.load(source_ptr + index, index < count), index < count)


def copy(source: torch.Tensor, target: torch.Tensor, block: int = 4096, warps: int = 8) -> Call:
    """A call that copies int32 ``source`` to ``target``. ``Tensor.copy_`` in a graph would be a slower memcpy node."""
    count = source.numel()
    return lambda: copy_kernel[(triton.cdiv(count, block),)](source, target, count, BLOCK=block, num_warps=warps)


@triton.jit
def read_kernel(data_ptr, sink_ptr, count, BLOCK: tl.constexpr):
    """Read ``count`` int32. It never stores: no sum of positive values is -1, which no compiler can know."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(data_ptr + index, index < count, other=0) & 0xFFFF)
    if total == -1:
        tl.store(sink_ptr, total)


class Flusher:
    """Empties L2 of everything else by reading twice its size; it writes nothing, so it leaves no dirty line behind."""

    def __init__(self, l2_bytes: int, device: torch.device) -> None:
        self._data = torch.randint(1, 2**31, (2 * l2_bytes // 4 + 1,), dtype=torch.int32, device=device)
        self._sink = torch.zeros(1, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        """Read the buffer on the current stream."""
        count = self._data.numel()
        read_kernel[(triton.cdiv(count, READ_BLOCK),)](self._data, self._sink, count, BLOCK=READ_BLOCK)


@triton.jit
def clock64():
    """The cycle counter of this multiprocessor."""
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["cycles"])
def spin_kernel(elapsed_ptr, cycles):
    """Spin for ``cycles`` of the multiprocessor's clock; elapsed_ptr int64 [2] gets cycles and ns that passed."""
    first_ns = globaltimer()
    first = clock64()
    now = first
    while now - first < cycles:
        now = clock64()
    tl.store(elapsed_ptr, now - first)
    tl.store(elapsed_ptr + 1, globaltimer() - first_ns)


@triton.jit(do_not_specialize=["nanoseconds"])
def hand_over_kernel(nanoseconds):
    """Keep one multiprocessor busy for about ``nanoseconds``, and L2 as it is."""
    first = globaltimer()
    now = first
    while now - first < nanoseconds:
        now = globaltimer()


class ReadyGraph:
    """A captured graph of calls that is replayed only once the device has all of it.

    The host hands a graph over node by node. A device that is idle starts on the first nodes before the last ones are
    there, and waits in between; so the device spins until the host is done, and only then comes the graph. Whether it
    did is checked: a replay that the device reached too early is not used, and the next one gets a longer spin.
    """

    MARGIN, LEAST_NS, ATTEMPTS = 3.0, 50_000, 6

    def __init__(self, calls: Sequence[Call], before: Call | None = None) -> None:
        # A graph holds addresses, its calls the tensors that lie there.
        self._graph, self._calls, self._before = torch.cuda.CUDAGraph(), calls, before
        with torch.cuda.graph(self._graph):
            for call in calls:
                call()
        self._graph.replay()  # the first one also uploads the graph
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        self._graph.replay()
        self.early_replays = 0
        self._hand_over_ns = max(self.LEAST_NS, round(self.MARGIN * (time.perf_counter_ns() - started)))
        torch.cuda.synchronize()

    def replay(self) -> None:
        """Run the graph on the current stream."""
        self._graph.replay()

    def timed_replay(self) -> float:
        """Replay behind the spin and what must come right before the graph; the time of the graph between events, µs.

        Raises MeasurementError when the device stays ahead of the host.
        """
        for _ in range(self.ATTEMPTS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            hand_over_kernel[(1,)](self._hand_over_ns)
            if self._before is not None:
                self._before()
            start.record()
            self._graph.replay()
            end.record()
            early = start.query()
            end.synchronize()
            if not early:
                # Whole nanoseconds: the event's own value is a float of milliseconds, and its last digits are noise.
                return round(float(start.elapsed_time(end)) * 1e6) / 1e3
            self.early_replays += 1
            self._hand_over_ns *= 2
        raise MeasurementError(f"the device reached a graph before the host had handed it over, {self.ATTEMPTS} times")
