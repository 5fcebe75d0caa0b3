"""``dsmla-bench tune``: an operation's launch configurations beside each other, gated and timed as in any sweep.

A tuning run is a sweep of this project's kernels whose "provider" is a configuration (``block_tokens=4 num_warps=1``),
and so its rows are read and judged like any others. Which of them the operations' own tables choose today is in its
manifest, as row_ids under ``present``. Candidates that come to the same launch at a shape are measured once, and a
choice of the table that is no candidate is measured too. Nothing is written back: ``reports.tuning`` says what the
tables should hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dsmla_bench.bench.cases import expand, format_of, operation_of, shape_of, why_not
from dsmla_bench.bench.compile_ahead import compile_ahead
from dsmla_bench.bench.cross_compile import default_workers
from dsmla_bench.bench.measure import MeasureBench, cuda_bench
from dsmla_bench.bench.plan import SweepPlan
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, all_operations
from dsmla_bench.kernels.providers.triton import TritonProvider
from dsmla_bench.places import Where
from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Measurement

PROVIDER = TritonProvider.name
"""Whose kernels are tuned, and the name of what a table chooses where that is no candidate."""


class ConfiguredProvider(TritonProvider):
    """This project's kernels in one configuration, which is its name."""

    def __init__(self, name: str, configuration: Any) -> None:
        super().__init__({})
        self.name, self._configuration = name, configuration

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The launch in this configuration."""
        return super().bind(self._configured(operation), fmt, inputs, arch)

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """Likewise."""
        return super().plan(self._configured(operation), fmt, inputs, arch)

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """Of what Triton compiled for it."""
        return super().binary_sha256(self._configured(operation), fmt, inputs, arch)

    def _configured(self, operation: Operation) -> Operation:
        tuning = operation.tuning
        assert tuning is not None  # only operations that have candidates are tuned
        return dataclasses.replace(
            operation, plan=lambda fmt, inputs, arch: tuning.plan(fmt, inputs, arch, self._configuration)
        )


class TuneBench:
    """A worker's bench: measures cases that name a configuration as their provider."""

    def __init__(self, bench: MeasureBench) -> None:
        self._bench = bench

    def begin(self) -> None:
        """Take the device."""
        self._bench.begin()

    def measure(self, case: Case) -> Measurement:
        """Check and time one case."""
        self._bench.providers |= candidates(case)
        return self._bench.measure(case)


def tune_bench(config: WorkerConfig) -> TuneBench:
    """The bench of a tuning run's workers, on the CUDA device that the configuration names."""
    return TuneBench(cuda_bench(config))


@dataclass(frozen=True)
class TunePlan(SweepPlan):
    """A sweep of every candidate of the axes' operations. The axes' providers count for nothing."""

    def cases(self) -> dict[Architecture, list[Case]]:
        """Every case in every configuration, by architecture."""
        return {
            arch: [case for plain in self._plain(arch) for case in choices(plain)[0]] for arch in self.architectures
        }

    def create_run(self, results: Where) -> Run:
        """A new run folder below ``results``; its manifest says which rows the tables choose."""
        run = super().create_run(results)
        plain = [case for arch in self.architectures for case in self._plain(arch)]
        run.manifest["present"] = [choices(case)[1].row_id for case in plain]
        run.write_manifest()
        return run

    def run(self, run: Run) -> Generator[Measurement]:
        """Compile every kernel, then measure; yields and appends one measurement at a time."""
        for arch, cases in self.cases().items():
            for gpu in self.gpus(arch):
                compile_ahead(cases, launch_of, gpu.local_index, default_workers())
        yield from super().run(run)

    def _plain(self, arch: Architecture) -> list[Case]:
        """The cases as the tables launch them, those left out that no kernel of ours serves."""
        axes = dataclasses.replace(self.axes, providers=(PROVIDER,))
        provider = TritonProvider({})
        return [case for case in expand(axes, arch) if why_not(provider, case) is None]

    @property
    def _worker_config(self) -> WorkerConfig:
        return dataclasses.replace(super()._worker_config, kind="dsmla_bench.bench.tune:tune_bench")


def tunable() -> list[str]:
    """The names of the operations that have candidates."""
    return [operation.name for operation in all_operations() if operation.tuning is not None]


def choices(case: Case) -> tuple[list[Case], Case]:
    """The case in every configuration that is a launch of its own, and which of them the table chooses."""
    launches = _launches(case)
    names: list[str] = []
    for name in candidates(case):
        if not any(_same(launches[name], launches[other]) for other in names):
            names.append(name)
    chosen = next((name for name in names if _same(launches[name], launches[PROVIDER])), PROVIDER)
    in_turn = [dataclasses.replace(case, provider=name) for name in dict.fromkeys((*names, chosen))]
    return in_turn, dataclasses.replace(case, provider=chosen)


def candidates(case: Case) -> Mapping[str, ConfiguredProvider]:
    """The candidates at a case's shape, by name."""
    tuning = operation_of(case).tuning
    if tuning is None:
        return {}
    found = tuning.candidates(shape_of(case), Architecture.parse(case.arch).number)
    providers = (ConfiguredProvider(name_of(configuration), configuration) for configuration in found)
    return {provider.name: provider for provider in providers}


def name_of(configuration: Any) -> str:
    """``block_tokens=4 num_warps=1``: the fields of a configuration in order."""
    return " ".join(f"{name}={value}" for name, value in vars(configuration).items())


def launch_of(case: Case) -> Launch:
    """The launch of a case in the configuration that it names, planned without memory."""
    return _launches(case)[case.provider]


def _launches(case: Case) -> dict[str, Launch]:
    """The launches of a case by provider, planned without memory: every candidate's, and the one of the table."""
    operation, fmt, arch = operation_of(case), format_of(case), Architecture.parse(case.arch).number
    inputs = operation.make_inputs(fmt, shape_of(case), torch.device("meta"), torch.Generator())
    providers = {**candidates(case), PROVIDER: TritonProvider({})}
    planned = {name: provider.plan(operation, fmt, inputs, arch) for name, provider in providers.items()}
    return {name: launch for name, launch in planned.items() if launch is not None}


def _same(one: Launch, other: Launch) -> bool:
    """Whether two launches of one case differ in nothing but where their tensors lie."""
    return _identity(one) == _identity(other)


def _identity(launch: Launch) -> list[tuple[Any, ...]]:
    return [
        (
            step.kernel,
            step.grid,
            [argument for argument in step.args if not isinstance(argument, torch.Tensor)],
            dict(step.constants),
            step.num_warps,
            step.num_stages,
        )
        for step in launch.steps
    ]
