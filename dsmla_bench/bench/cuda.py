"""Measuring a case on a CUDA device: gate, then time.

``CudaBench.measure(case)`` never raises for what a kernel does wrong: it returns a Measurement with a status. Only an
error that leaves the device unusable ends the process, which the sweep notices and answers with a fresh one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from dsmla_bench.bench import gate, graphs
from dsmla_bench.bench.cases import inputs_key, operation_of, shape_of, why_not
from dsmla_bench.bench.rotation import plan_rotation
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat, get_format
from dsmla_bench.kernels.operations import Operation
from dsmla_bench.kernels.providers import Provider, load_providers
from dsmla_bench.rows import Case, Measurement

REPLAYS = 15


class CudaBench:
    """Measures cases on one CUDA device of this process."""

    def __init__(self, config: WorkerConfig) -> None:
        self.process, self.seed = config.process, config.seed
        self.device = torch.device("cuda", config.device)
        torch.cuda.set_device(self.device)
        properties = torch.cuda.get_device_properties(self.device)
        self.device_name, self.l2_bytes = properties.name, properties.L2_cache_size
        self.arch = Architecture(properties.major, properties.minor)
        self.providers = load_providers(config.library_paths())
        self.flush = graphs.Flusher(self.l2_bytes, self.device)
        self.calibration = self._calibrate()
        self._inputs = _InputsCache(self.device, config.seed)

    def _calibrate(self) -> dict[str, float | None]:
        """The empty kernel's time, what the clock resolves and the copy bandwidth, by the method of the rows."""
        floor = graphs.measure_floor(self.device, 3 * REPLAYS)
        return {
            "floor_us": sorted(floor)[len(floor) // 2],
            "quantum_us": graphs.quantum_us(floor),
            "copy_gbps": graphs.measure_copy_gbps(self.device, REPLAYS),
        }

    def measure(self, case: Case) -> Measurement:
        """Check and time one case."""
        operation, fmt = operation_of(case), get_format(f"{case.format}:{case.revision}")
        provider = self.providers[case.provider]
        reason = why_not(provider, operation, fmt, case)
        if reason is not None:
            return Measurement(case, self.process, "skipped", reason)
        facts = self._facts(operation, fmt, case)
        try:
            return self._gate_and_time(operation, fmt, provider, case, facts)
        except torch.OutOfMemoryError as error:
            self._inputs.clear()
            gc.collect()
            torch.cuda.empty_cache()
            return Measurement(case, self.process, "oom", str(error).splitlines()[0], facts=facts)

    def _gate_and_time(
        self, operation: Operation, fmt: CacheFormat, provider: Provider, case: Case, facts: dict[str, Any]
    ) -> Measurement:
        inputs = self._inputs.get(operation, fmt, case, 0)
        expected = self._inputs.expected(operation, fmt, case)
        started = time.perf_counter()
        call = provider.bind(operation, fmt, inputs, self.arch)
        found = gate.outputs_of(call, operation.outputs(inputs))
        torch.cuda.synchronize()
        facts["first_call_us"] = (time.perf_counter() - started) * 1e6
        result = gate.compare(found, expected)
        facts |= {"bytes_compared": result.bytes_compared, "bytes_differing": result.bytes_differing}
        if result.bytes_differing:
            return Measurement(case, self.process, "incorrect", result.reason, facts=facts)

        def bind(index: int) -> graphs.Call:
            return provider.bind(operation, fmt, self._inputs.get(operation, fmt, case, index), self.arch)

        samples = self._time(call, bind, facts["bytes_read"] + facts["bytes_written"], case.l2_state)
        return Measurement(case, self.process, "ok", samples={"graph": samples}, facts=facts)

    def _time(self, call: graphs.Call, bind: Callable[[int], graphs.Call], nbytes: int, l2_state: str) -> list[float]:
        """Samples of µs per launch: over rotating buffers behind a flush (cold), or on one buffer (hot)."""
        estimate_us = min(graphs.event_time_us(call) for _ in range(3))
        short, long = graphs.launches_for(estimate_us)
        if l2_state == "hot":
            return graphs.slope_samples([call] * short, [call] * long, REPLAYS)
        rotation = plan_rotation(nbytes, self.l2_bytes, long)
        calls = [bind(index) for index in range(rotation.buffers)]
        launches = [calls[index % rotation.buffers] for index in range(long)]
        return graphs.slope_samples(launches[:short], launches, REPLAYS, self.flush)

    def _facts(self, operation: Operation, fmt: CacheFormat, case: Case) -> dict[str, Any]:
        traffic = operation.traffic(fmt, shape_of(case))
        return {
            "bytes_read": traffic.bytes_read,
            "bytes_written": traffic.bytes_written,
            "conversion": fmt.conversion(self.arch) if case.provider == "triton" else None,
            "seed": self.seed,
            "device": self.device_name,
            **self.calibration,
        }


class _InputsCache:
    """Inputs of the cases that share them, one set per rotating buffer, and the reference's outputs for the first."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device, self._seed = device, seed
        self._key: tuple[Any, ...] | None = None
        self._sets: dict[int, Any] = {}
        self._expected: dict[str, torch.Tensor] | None = None

    def get(self, operation: Operation, fmt: CacheFormat, case: Case, index: int) -> Any:
        """The inputs of buffer ``index``, from a seed of their own."""
        if inputs_key(case) != self._key:
            self.clear()
            self._key = inputs_key(case)
        if index not in self._sets:
            generator = torch.Generator(self._device).manual_seed(self._seed * 1000 + index)
            self._sets[index] = operation.make_inputs(fmt, shape_of(case), self._device, generator)
        return self._sets[index]

    def expected(self, operation: Operation, fmt: CacheFormat, case: Case) -> dict[str, torch.Tensor]:
        """The bytes that the reference writes for buffer 0."""
        inputs = self.get(operation, fmt, case, 0)
        if self._expected is None:
            self._expected = gate.outputs_of(operation.reference(fmt, inputs), operation.outputs(inputs))
        return self._expected

    def clear(self) -> None:
        """Let go of everything."""
        self._key, self._expected = None, None
        self._sets.clear()
