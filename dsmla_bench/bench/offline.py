"""Checking and compiling a case without a GPU: two benches, one in Triton's interpreter, one with its compiler.

Triton decides when a kernel is defined whether it will be interpreted, so the two run in processes of their own. The
interpreter runs the very kernel configuration that the case selects, on the fewest tokens, heads and top-k rows that
select it: a kernel's correctness depends on its configuration, its time in the interpreter on the tokens.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import torch

from dsmla_bench.bench import gate
from dsmla_bench.bench.cases import format_of, operation_of, shape_of, traffic_facts, why_not
from dsmla_bench.bench.compile import CompileError
from dsmla_bench.bench.static_facts import cached_facts, static_facts
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.interpreter import corrected_conversions
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.providers import Provider, load_providers
from dsmla_bench.rows import Case, Measurement

DETAIL = 20_000
"""Characters of the compiler's own text that a row keeps."""


class InterpretBench:
    """The correctness gate in Triton's interpreter; ok means that every byte was right."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config, self.providers = config, load_providers(config.library_paths())
        self._results: dict[Case, gate.GateResult] = {}

    def begin(self) -> None:
        """There is no device to take."""

    def measure(self, case: Case) -> Measurement:
        """Interpret the case's kernel and compare its bytes with the reference's."""
        provider = self.providers[case.provider]
        small = dataclasses.replace(interpreted_case(provider, case), arch="")
        if small not in self._results:
            self._results[small] = self._interpret(provider, small)
        result = self._results[small]
        counts = {"bytes_compared": result.bytes_compared, "bytes_differing": result.bytes_differing}
        facts = {**counts, "seed": self.config.seed}
        if result.reason is not None:
            return Measurement(case, self.config.process, "incorrect", result.reason, facts=facts)
        return Measurement(case, self.config.process, "ok", facts=facts)

    def _interpret(self, provider: Provider, case: Case) -> gate.GateResult:
        operation, fmt = operation_of(case), format_of(case)
        generator = torch.Generator().manual_seed(self.config.seed)
        inputs = operation.make_inputs(fmt, shape_of(case), torch.device("cpu"), generator)
        outputs = operation.outputs(inputs)
        expected = gate.outputs_of(operation.reference(fmt, inputs), outputs)
        launch = provider.plan(operation, fmt, inputs, 0)
        assert launch is not None  # the case was compiled, so the provider plans a launch for it
        with corrected_conversions():
            return gate.compare(operation, gate.outputs_of(launch.run, outputs), expected)


class CompileBench:
    """Cross-compiles the kernels of cases; the status of a kernel that compiled is ``compiled``."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config, self.providers = config, load_providers(config.library_paths())

    def begin(self) -> None:
        """There is no device to take."""

    def measure(self, case: Case) -> Measurement:
        """Compile the case's kernel for its architecture, or take what is known of it from the cache."""
        arch, launch = Architecture.parse(case.arch), self._launch(case)
        if isinstance(launch, str):
            return Measurement(case, self.config.process, "skipped", launch)
        try:
            return self._compiled(case, static_facts(launch, arch))
        except CompileError as error:
            facts = {**_case_facts(self.providers[case.provider], case), "detail": _own_words(error)[:DETAIL]}
            return Measurement(case, self.config.process, "compile_error", str(error), facts=facts)

    def known(self, case: Case) -> Measurement | None:
        """The same without compiling: for a case that is skipped or whose facts are in the cache; None for others."""
        arch, launch = Architecture.parse(case.arch), self._launch(case)
        if isinstance(launch, str):
            return Measurement(case, self.config.process, "skipped", launch)
        facts = cached_facts(launch, arch)
        return None if facts is None else self._compiled(case, facts)

    def _launch(self, case: Case) -> Launch | str:
        """The launch to compile, or in words why there is none."""
        provider, arch = self.providers[case.provider], Architecture.parse(case.arch)
        reason = why_not(provider, case)
        if reason is not None:
            return reason
        launch = launch_without_data(provider, case, arch.number)
        return launch or f"{case.provider} is timed on a GPU only; no {arch.label} device here"

    def _compiled(self, case: Case, facts: dict[str, Any]) -> Measurement:
        reason = f"no {Architecture.parse(case.arch).label} device here: compiled, not timed"
        return Measurement(
            case,
            self.config.process,
            "compiled",
            reason,
            facts={**_case_facts(self.providers[case.provider], case), **facts},
        )


def interpreted_case(provider: Provider, case: Case) -> Case:
    """The case with the fewest tokens, heads and top-k rows that select its kernel configuration."""
    wanted = _configuration(launch_without_data(provider, case, 0))
    sizes = {"tokens": _sizes_up_to(case.tokens, max(3, case.requests))}
    sizes |= {name: _sizes_up_to(most, 3) for name in ("heads", "topk") if (most := getattr(case, name)) is not None}
    for chosen in sorted(itertools.product(*sizes.values()), key=math.prod):
        fewer: dict[str, Any] = dict(zip(sizes, chosen, strict=True))
        smaller = dataclasses.replace(case, **fewer)
        if _configuration(launch_without_data(provider, smaller, 0)) == wanted:
            return smaller
    return case


def _sizes_up_to(largest: int, first: int) -> list[int]:
    """``first``, and on, each one less than twice the one before, while they are below ``largest``; then that."""
    sizes = []
    while first < largest:
        sizes.append(first)
        first = 2 * first - 1
    return [*sizes, largest]


def launch_without_data(provider: Provider, case: Case, arch: int) -> Launch | None:
    """The launch of a case, planned on the meta device: shapes, types and strides, but no memory."""
    operation, fmt = operation_of(case), format_of(case)
    inputs = operation.make_inputs(fmt, shape_of(case), torch.device("meta"), torch.Generator())
    return provider.plan(operation, fmt, inputs, arch)


def _configuration(launch: Launch | None) -> tuple[Any, ...] | None:
    if launch is None:
        return None
    return tuple((step.kernel, *step.constants.items(), step.num_warps, step.num_stages) for step in launch.steps)


def _own_words(error: BaseException) -> str:
    """What the compiler said: the messages of the errors that led to this one, the outermost first."""
    messages = []
    while error.__cause__ is not None:
        error = error.__cause__
        messages.append(str(error).strip())
    return "\n".join(messages) or str(error)


def _case_facts(provider: Provider, case: Case) -> dict[str, Any]:
    """Columns that follow from the case: its traffic, and the floor at the published bandwidth, where one is known."""
    arch = Architecture.parse(case.arch)
    facts = traffic_facts(provider, case, arch)
    moved = facts["bytes_read"] + facts["bytes_written"]
    predicted = moved / arch.published_gbps / 1e3 if arch.published_gbps else None
    return facts | {
        "published_part": arch.published_part,
        "published_gbps": arch.published_gbps,
        "predicted_us": predicted,
    }
