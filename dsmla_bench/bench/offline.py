"""Checking and compiling a case without a GPU: two benches, one in Triton's interpreter, one with its compiler.

Triton decides when a kernel is defined whether it will be interpreted, so the two run in processes of their own. The
interpreter runs the very kernel configuration that the case's number of tokens selects, on the fewest tokens that
select it: a kernel's correctness depends on its configuration, its time on the interpreter on the tokens.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from dsmla_bench.bench import gate
from dsmla_bench.bench.cases import operation_of, shape_of, why_not
from dsmla_bench.bench.compile import CompileError, compile_launch
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat, get_format
from dsmla_bench.kernels.interpreter import corrected_conversions
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation
from dsmla_bench.kernels.providers import load_providers
from dsmla_bench.rows import Case, Measurement


class InterpretBench:
    """The correctness gate in Triton's interpreter; ok means that every byte was right."""

    def __init__(self, config: WorkerConfig) -> None:
        self.process, self.seed = config.process, config.seed
        self._results: dict[Any, gate.GateResult] = {}

    def measure(self, case: Case) -> Measurement:
        """Interpret the case's kernel and compare its bytes with the reference's."""
        operation, fmt = operation_of(case), get_format(f"{case.format}:{case.revision}")
        small = dataclasses.replace(case, tokens=interpreted_tokens(operation, fmt, case))
        key = dataclasses.replace(small, arch="")
        if key not in self._results:
            self._results[key] = self._interpret(operation, fmt, small)
        result = self._results[key]
        facts = {"bytes_compared": result.bytes_compared, "bytes_differing": result.bytes_differing, "seed": self.seed}
        if result.bytes_differing:
            return Measurement(case, self.process, "incorrect", result.reason, facts=facts)
        return Measurement(case, self.process, "ok", facts=facts)

    def _interpret(self, operation: Operation, fmt: CacheFormat, case: Case) -> gate.GateResult:
        generator = torch.Generator().manual_seed(self.seed)
        inputs = operation.make_inputs(fmt, shape_of(case), torch.device("cpu"), generator)
        outputs = operation.outputs(inputs)
        expected = gate.outputs_of(operation.reference(fmt, inputs), outputs)
        launch = operation.plan(fmt, inputs, 0)
        assert launch is not None  # a case has at least one token
        with corrected_conversions():
            return gate.compare(gate.outputs_of(launch.run, outputs), expected)


class CompileBench:
    """Cross-compiles the kernels of cases; the status of a kernel that compiled is ``compiled``."""

    def __init__(self, config: WorkerConfig) -> None:
        self.process, self.seed = config.process, config.seed
        self.providers = load_providers(config.library_paths())

    def measure(self, case: Case) -> Measurement:
        """Compile the case's kernel for its architecture."""
        operation, fmt = operation_of(case), get_format(f"{case.format}:{case.revision}")
        arch = Architecture.parse(case.arch)
        reason = why_not(self.providers[case.provider], operation, fmt, case)
        if reason is None and case.provider != "triton":
            reason = f"{case.provider} is timed on a GPU only; no {arch.label} device here"
        if reason is not None:
            return Measurement(case, self.process, "skipped", reason)
        traffic = operation.traffic(fmt, shape_of(case))
        facts = {
            "bytes_read": traffic.bytes_read,
            "bytes_written": traffic.bytes_written,
            "conversion": fmt.conversion(arch),
            "published_gbps": arch.published_gbps,
            "predicted_us": _predicted_us(traffic.bytes_read + traffic.bytes_written, arch),
        }
        try:
            compiled = compile_launch(_launch_without_data(operation, fmt, case, arch.number), arch)
        except CompileError as error:
            return Measurement(case, self.process, "compile_error", str(error), facts=facts)
        facts |= {
            "registers": compiled.registers,
            "spilled_bytes": compiled.spilled_bytes,
            "shared_bytes": compiled.shared_bytes,
        }
        return Measurement(
            case, self.process, "compiled", f"no {arch.label} device here: compiled, not timed", facts=facts
        )


def interpreted_tokens(operation: Operation, fmt: CacheFormat, case: Case) -> int:
    """The fewest tokens, one past a power of two, that select the same kernel configuration as the case's tokens."""
    wanted = _configuration(_launch_without_data(operation, fmt, case, 0))
    tokens = max(3, case.requests)
    while tokens < case.tokens:
        if _configuration(_launch_without_data(operation, fmt, dataclasses.replace(case, tokens=tokens), 0)) == wanted:
            return tokens
        tokens = 2 * tokens - 1
    return case.tokens


def _launch_without_data(operation: Operation, fmt: CacheFormat, case: Case, arch: int) -> Launch:
    """The launch of a case, planned on the meta device: shapes, types and strides, but no memory."""
    inputs = operation.make_inputs(fmt, shape_of(case), torch.device("meta"), torch.Generator())
    launch = operation.plan(fmt, inputs, arch)
    assert launch is not None  # a case has at least one token
    return launch


def _configuration(launch: Launch) -> tuple[Any, ...]:
    return (launch.kernel, *launch.constants.items(), launch.num_warps, launch.num_stages)


def _predicted_us(nbytes: int, arch: Architecture) -> float | None:
    """The floor from the bytes moved and the published bandwidth, µs; None where nothing is published."""
    return nbytes / arch.published_gbps / 1e3 if arch.published_gbps else None
