"""Measuring a case on a device: is there an implementation, are its bytes right, how long does it take.

``MeasureBench.measure(case)`` answers with a Measurement whatever a kernel does; only an error that leaves the device
unusable ends the process, which the sweep notices and answers with a fresh one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from dsmla_bench.bench import gate
from dsmla_bench.bench.cases import format_of, operation_of, shape_of, traffic_facts, why_not
from dsmla_bench.bench.device import Call, Device
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.error_text import first_line
from dsmla_bench.kernels.operations import Operation
from dsmla_bench.kernels.providers import Provider, load_providers
from dsmla_bench.rows import Case, Measurement, inputs_key
from dsmla_bench.summary import CLOCK_DRIFT


class MeasureBench:
    """Checks and times cases on the device that ``take_device`` gives when it begins."""

    def __init__(self, config: WorkerConfig, take_device: Callable[[], Device]) -> None:
        self.config, self._take_device = config, take_device
        self.providers = load_providers(config.library_paths())
        self.device: Device
        self.calibration: dict[str, Any]

    def begin(self) -> None:
        """Take the device and calibrate it."""
        self.device = self._take_device()
        self.calibration = self.device.calibrate(self.config.methods)
        self._inputs = _InputsCache(self.device.torch_device, self.config.seed)

    def measure(self, case: Case) -> Measurement:
        """Check and time one case."""
        provider = self.providers[case.provider]
        reason = why_not(provider, case)
        if reason is not None:
            return Measurement(case, self.config.process, "skipped", reason)
        machine = {"device": self.device.name, "peak_gbps": self.device.peak_gbps, "seed": self.config.seed}
        facts = {**traffic_facts(provider, case, self.device.arch), **machine, **self.calibration}
        try:
            return self._gate_and_time(provider, case, facts)
        except torch.OutOfMemoryError as error:
            self._inputs.clear()
            gc.collect()
            torch.cuda.empty_cache()
            return Measurement(case, self.config.process, "oom", first_line(error), facts=facts)

    def _gate_and_time(self, provider: Provider, case: Case, facts: dict[str, Any]) -> Measurement:
        operation, fmt, arch = operation_of(case), format_of(case), self.device.arch
        expected = self._inputs.expected(case)

        def bind(index: int) -> Call:
            return provider.bind(operation, fmt, self._inputs.get(case, index), arch)

        started = time.perf_counter()
        call = bind(0)
        found = gate.outputs_of(call, operation.outputs(self._inputs.get(case, 0)))
        self.device.synchronize()
        facts["first_call_us"] = (time.perf_counter() - started) * 1e6
        result = gate.compare(operation, found, expected)
        facts |= {"bytes_compared": result.bytes_compared, "bytes_differing": result.bytes_differing}
        if reason := self._why_incorrect(case, result):
            return Measurement(case, self.config.process, "incorrect", reason, facts=facts)
        facts["binary_sha256"] = provider.binary_sha256(operation, fmt, self._inputs.get(case, 0), arch)
        moved = facts["bytes_read"] + facts["bytes_written"]
        timing = self.device.time(bind, moved, case.l2_state, self.config.methods)
        facts |= timing.facts
        for replay in timing.replays:
            after = gate.outputs_of(replay, operation.outputs(self._inputs.get(case, 0)))
            self.device.synchronize()
            if reason := self._why_incorrect(case, gate.compare(operation, after, expected)):
                reason = f"right when called, wrong as it was timed: {reason}"
                return Measurement(case, self.config.process, "incorrect", reason, facts=facts)
        if facts.get("throttle_reasons") and facts["sm_mhz"] < (1 - CLOCK_DRIFT) * self.calibration["sm_mhz"]:
            clocks = f"{facts['sm_mhz']:.0f} of {self.calibration['sm_mhz']:.0f} MHz"
            reason = f"the device was throttled while this was timed: {facts['throttle_reasons']}, {clocks}"
            return Measurement(case, self.config.process, "throttled", reason, timing.samples, facts)
        return Measurement(case, self.config.process, "ok", samples=timing.samples, facts=facts)

    def _why_incorrect(self, case: Case, result: gate.GateResult) -> str | None:
        """Why a kernel is wrong: bytes that differ, or inputs that it changed. Inputs are made anew after either."""
        changed = self._inputs.changed(case)
        reason = result.reason or (f"it changed its input {changed}" if changed else None)
        if reason is not None:
            self._inputs.clear()
        return reason


class _InputsCache:
    """Inputs of the cases that share them, one set per rotating buffer, and the reference's outputs for the first."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device, self._seed = device, seed
        self._key: tuple[Any, ...] | None = None
        self._sets: dict[int, Any] = {}
        self._expected: dict[str, torch.Tensor] | None = None
        self._untouched: dict[str, torch.Tensor] = {}

    def get(self, case: Case, index: int) -> Any:
        """The inputs of buffer ``index``, from a seed of their own."""
        if inputs_key(case) != self._key:
            self.clear()
            self._key = inputs_key(case)
        if index not in self._sets:
            generator = torch.Generator(self._device).manual_seed(self._seed * 1000 + index)
            make_inputs = operation_of(case).make_inputs
            self._sets[index] = make_inputs(format_of(case), shape_of(case), self._device, generator)
        return self._sets[index]

    def expected(self, case: Case) -> dict[str, torch.Tensor]:
        """The bytes that the reference writes for buffer 0."""
        inputs = self.get(case, 0)
        if self._expected is None:
            operation = operation_of(case)
            self._untouched = {name: tensor.clone() for name, tensor in _only_read(operation, inputs).items()}
            run = operation.reference(format_of(case), inputs)
            self._expected = gate.outputs_of(run, operation.outputs(inputs))
        return self._expected

    def changed(self, case: Case) -> str | None:
        """The first input of buffer 0 that is not what it was, by name; None when all are."""
        now = _only_read(operation_of(case), self.get(case, 0))
        return next((name for name, before in self._untouched.items() if not torch.equal(now[name], before)), None)

    def clear(self) -> None:
        """Let go of everything."""
        self._key, self._expected = None, None
        self._untouched.clear()
        self._sets.clear()


def _only_read(operation: Operation, inputs: Any) -> dict[str, torch.Tensor]:
    """The tensors among an operation's inputs that it must not write, by field name."""
    written = {tensor.data_ptr() for tensor in operation.outputs(inputs).values()}
    tensors = {name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)}
    return {name: tensor for name, tensor in tensors.items() if tensor.data_ptr() not in written}


def cuda_bench(config: WorkerConfig) -> MeasureBench:
    """The bench of worker kind ``cuda``: on the one CUDA device that a worker sees."""
    from triton.runtime.cache import triton_key

    from dsmla_bench.bench.cuda import CudaDevice

    triton_key()  # reads all of Triton, half a second that Triton would spend at the first launch
    return MeasureBench(config, lambda: CudaDevice(0))
