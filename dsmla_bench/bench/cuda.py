"""Timing on a CUDA device: both methods, hot and cold, the clock beside them, and the ceilings of the machine."""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dsmla_bench.bench import graphs, kernels
from dsmla_bench.bench.activity import activity_times, separated
from dsmla_bench.bench.device import Call, MeasurementError, Timing
from dsmla_bench.bench.nvml import open_nvml
from dsmla_bench.bench.rotation import plan_rotation
from dsmla_bench.kernels.arch import Architecture

GRAPH_REPLAYS = 15
CALIBRATION_REPLAYS = 3
ACTIVITY_REPLAYS = 3
COPY_BYTES = 2**30
MATMUL_SIZE = 4096
CLOCK_CYCLES = 200_000


class CudaDevice:
    """One CUDA device of this process."""

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.name, self.l2_bytes = properties.name, properties.L2_cache_size
        self.arch = Architecture(properties.major, properties.minor)
        self.nvml = open_nvml(str(properties.uuid))
        described = self.nvml.describe() if self.nvml else {}
        self.peak_gbps = described.get("peak_gbps") or self.arch.published_gbps
        reset_persisting_l2()
        self._flush = kernels.Flusher(self.l2_bytes, self.torch_device)
        self._spun, self._clock = (torch.zeros(2, dtype=torch.int64, device=self.torch_device) for _ in range(2))
        for warm_up in (self._flush, kernels.empty, kernels.separator, self.sm_mhz):
            warm_up()
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for the device; raises what went wrong on it."""
        torch.cuda.synchronize(self.torch_device)

    def calibrate(self, methods: Sequence[str]) -> dict[str, Any]:
        """An empty kernel by the first method, what that resolves, a copy's bandwidth, a product's rate, the clock."""
        launches = [kernels.empty] * graphs.LONG_LAUNCHES
        floor = _TimedLaunches(launches, graphs.SHORT_LAUNCHES, None, methods[0]).samples()
        return {
            "floor_us": statistics.median(floor),
            "quantum_us": graphs.quantum_us(floor),
            "copy_gbps": self.copy_gbps(),
            "matmul_tflops": self.matmul_tflops(),
            "sm_mhz": self.sm_mhz(),
        }

    def matmul_tflops(self, size: int = MATMUL_SIZE) -> float:
        """The rate of a square bf16 matrix product, 1e12 operations per second."""
        generator = torch.Generator(self.torch_device).manual_seed(0)
        shape = (size, size)
        a, b = (torch.randn(shape, generator=generator, device=self.torch_device).bfloat16() for _ in range(2))
        product = torch.empty_like(a)

        def multiply() -> None:
            torch.mm(a, b, out=product)

        multiply()
        # Few replays: a long burst of products would leave the card at its power limit for the first cases.
        timed = _TimedLaunches([multiply] * 4, 1, None, "graph", CALIBRATION_REPLAYS)
        return 2 * size**3 / statistics.median(timed.samples()) / 1e6

    def copy_gbps(self, nbytes: int = COPY_BYTES) -> float:
        """The ceiling: GB/s of bytes read + written of the fastest of several copy kernels over ``nbytes``."""
        source = torch.randint(1, 2**31, (nbytes // 4,), dtype=torch.int32, device=self.torch_device)
        target = torch.empty_like(source)
        best_us = math.inf
        for block, warps in kernels.COPY_CONFIGURATIONS:
            copy = kernels.copy(source, target, block, warps)
            copy()
            timed = _TimedLaunches([copy] * 4, 1, None, "graph", CALIBRATION_REPLAYS)
            best_us = min(best_us, statistics.median(timed.samples()))
        return 2 * nbytes / best_us / 1e3

    def time(self, bind: Callable[[int], Call], nbytes: int, l2_state: str, methods: Sequence[str]) -> Timing:
        """Samples by every method: over rotating buffers behind a flush (cold), or over one buffer (hot)."""
        call = bind(0)
        call()  # whatever its first call loads must be loaded before a graph is captured
        short, long = graphs.launches_for(graphs.estimate_us(call))
        launches: list[Call] = [call] * long
        before: Call | None = None
        if l2_state == "cold":
            rotation = plan_rotation(nbytes, self.l2_bytes, long)
            calls = [call, *(bind(index) for index in range(1, rotation.buffers))]
            launches, before = [calls[index % rotation.buffers] for index in range(long)], self._flush
        clocks, reasons, samples, replays = [self.sm_mhz()], self._throttle_reasons(), {}, []
        others = [self._other_processes()]
        facts: dict[str, Any] = {}
        for method in methods:
            timed = _TimedLaunches(launches, short, before, method)
            samples[method] = timed.samples(facts)
            replays.append(timed.replay)
            clocks.append(self.sm_mhz())
            reasons |= self._throttle_reasons()
            others.append(self._other_processes())
        facts |= {"sm_mhz": min(clocks), "throttle_reasons": ", ".join(sorted(reasons)) or None}
        facts["other_processes"] = max(others)
        return Timing(samples, facts, replays)

    def _throttle_reasons(self) -> set[str]:
        return set(self.nvml.throttle_reasons()) if self.nvml else set()

    def _other_processes(self) -> int:
        """How many other processes compute on the device; 0 where nothing tells."""
        return (self.nvml.other_processes() or 0) if self.nvml else 0

    def spin(self, microseconds: float) -> Call:
        """A call that spins for so long by the multiprocessor's cycle counter."""
        cycles = round(microseconds * self.sm_mhz())
        return lambda: kernels.spin_kernel[(1,)](self._spun, cycles)

    def spun_us(self) -> float:
        """How long the last spin took: its cycles over the clock's rate."""
        return int(self._spun[0]) / self.sm_mhz()

    def copy(self, nbytes: int) -> Call:
        """A call that copies ``nbytes`` between two buffers of its own."""
        source = torch.randint(1, 2**31, (nbytes // 4,), dtype=torch.int32, device=self.torch_device)
        return kernels.copy(source, torch.empty_like(source))

    def on_side_stream(self, call: Call) -> Call:
        """A call that does ``call`` on a second stream and joins it."""
        side = torch.cuda.Stream(self.torch_device)

        def forked() -> None:
            main = torch.cuda.current_stream(self.torch_device)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                call()
            main.wait_stream(side)

        return forked

    def sm_mhz(self) -> float:
        """The multiprocessor clock right now, MHz: cycles over nanoseconds of a kernel that spins about 0.1 ms."""
        kernels.spin_kernel[(1,)](self._clock, CLOCK_CYCLES)
        cycles, nanoseconds = self._clock.tolist()
        return float(1e3 * cycles / nanoseconds)


class _TimedLaunches:
    """Launches captured for one method, the first ``short`` of which are there to settle the pipeline."""

    def __init__(
        self, launches: list[Call], short: int, before: Call | None, method: str, replays: int | None = None
    ) -> None:
        self._short, self._long = short, len(launches)
        self._replays = replays or (GRAPH_REPLAYS if method == "graph" else ACTIVITY_REPLAYS)
        steps = separated(launches) if method == "activity" else launches
        self._graph = kernels.ReadyGraph(steps, before)
        self._short_graph = kernels.ReadyGraph(launches[:short], before) if method == "graph" else None

    def samples(self, facts: dict[str, Any] | None = None) -> list[float]:
        """Samples of µs per launch; the summed durations of an operation's kernels go into ``facts``."""
        if self._short_graph is not None:
            launches = (self._short, self._long)
            return graphs.slope_samples(self._short_graph, self._graph, launches, self._replays)
        times = activity_times(self._graph, self._long, self._short, self._replays)
        if facts is not None:
            facts["us_sum"] = statistics.median(time.sum_us for time in times)
        return [time.span_us for time in times]

    def replay(self) -> None:
        """Do again what was timed, unmeasured."""
        self._graph.replay()


def reset_persisting_l2() -> None:
    """Turn lines that an earlier user of the context made persist in L2 into ordinary ones, which a flush evicts.

    Raises MeasurementError when the driver refuses.
    """
    code = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
    if code != 0:
        raise MeasurementError(f"the driver could not reset persisting L2 lines (cuCtxResetPersistingL2Cache: {code})")
