"""What a sweep is going to do, settled before it starts: its configuration, its cases on every architecture, its cost.

``SweepPlan`` is everything that decides which rows a run will hold; its ``config`` goes into the manifest with a hash,
and is what a resumed sweep must share with the run.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsmla_bench.bench import manifest
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.bench.device import METHODS
from dsmla_bench.bench.sweep import check_offline, measure, measure_process
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.providers import load_providers
from dsmla_bench.results import Run, config_hash
from dsmla_bench.rows import Case, Measurement

MOST_SEED = 2**40
"""Larger ones overflow what generators take once buffers are numbered."""
MOST_TIMEOUT_S = 86_400.0
START_S, MEASURE_S, SLOW_MEASURE_S, OFFLINE_S = 8.0, 0.12, 0.3, 0.3
"""Seconds, measured on an H200 and two CPU cores: a worker's start, a timed case of ours or production's, one of the
reference, and a case checked and compiled without a device."""


@dataclass(frozen=True)
class SweepPlan:
    """One sweep. ``libraries`` maps providers to compiled operator libraries; ``processes`` are per timed case."""

    axes: Axes
    architectures: tuple[Architecture, ...]
    processes: int = 5
    seed: int = 0
    methods: Sequence[str] = METHODS
    libraries: Mapping[str, str] = field(default_factory=dict)
    case_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MOST_SEED:
            raise ValueError(f"the seed must be from 0 to {MOST_SEED}, found {self.seed}")
        if not 0 < self.case_timeout_s <= MOST_TIMEOUT_S:
            raise ValueError(f"a case may take at most {MOST_TIMEOUT_S:g} s, found {self.case_timeout_s:g}")

    @property
    def config(self) -> dict[str, Any]:
        """What decides the run's rows, as plain data. Of a library only its name counts: paths differ by machine."""
        return {
            **self.axes.as_dict(),
            "architectures": [arch.name for arch in self.architectures],
            "processes": self.processes,
            "seed": self.seed,
            "methods": list(self.methods),
            "libraries": {provider: path.rpartition("/")[2] for provider, path in self.libraries.items()},
        }

    def identity(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What measures: devices, packages, commit (of ``manifest.describe``), and the operator libraries' contents."""
        devices = {arch.name: manifest.find_device(arch) for arch in self.architectures}
        return {
            **{name: facts[name] for name in ("tool_version", "packages", "git")},
            "devices": {name: found and manifest.device_uuid(found[0]) for name, found in devices.items()},
            "libraries": {provider: manifest.file_sha256(path) for provider, path in self.libraries.items()},
        }

    def cases(self) -> dict[Architecture, list[Case]]:
        """Every case by architecture."""
        return {arch: expand(self.axes, arch) for arch in self.architectures}

    def missing(self) -> list[Architecture]:
        """The architectures that have no device here: their kernels are checked and compiled, not timed."""
        return [arch for arch in self.architectures if manifest.find_device(arch) is None]

    def steps(self) -> int:
        """How many measurements the sweep takes at most."""
        missing = self.missing()
        return sum(len(cases) * (1 if arch in missing else self.processes) for arch, cases in self.cases().items())

    def seconds(self) -> float:
        """About how long the sweep takes; other machines than the ones named at the constants differ."""
        total = 0.0
        for arch, cases in self.cases().items():
            if arch in self.missing():
                total += 2 * START_S + OFFLINE_S * len(cases)
            else:
                slow = sum(case.provider == "reference" for case in cases)
                per_process = START_S + SLOW_MEASURE_S * slow + MEASURE_S * (len(cases) - slow)
                total += self.processes * per_process
        return total

    def create_run(self, results: Any) -> Run:
        """A new run folder below ``results`` with the plan's manifest."""
        facts = manifest.describe()
        devices = [found for arch in self.architectures if (found := manifest.find_device(arch)) is not None]
        if devices:
            facts["device"] = manifest.describe_device(devices[0][0])
        if missing := self.missing():
            facts["not_timed"] = why_not_timed(missing)
        providers = load_providers({provider: Path(path) for provider, path in self.libraries.items()})
        facts["providers"] = {name: provider.version() for name, provider in providers.items()}
        config = {"config": self.config, "config_sha256": config_hash(self.config), "seed": self.seed}
        settings = {**config, "identity": self.identity(facts)}
        return Run.create(results, {"argv": ["dsmla-bench", *sys.argv[1:]], **settings, **facts})

    def run(self, run: Run) -> Generator[Measurement]:
        """Measure what ``run`` does not hold yet; yields and appends one measurement at a time."""
        for arch, cases in self.cases().items():
            found = manifest.find_device(arch)
            if found is None:
                yield from check_offline(run, cases, self._worker_config)
            else:
                yield from measure(run, cases, replace(self._worker_config, device=found[0]), self.processes)

    def run_process(self, run: Run, process: int, rows: Collection[str] | None = None) -> Generator[Measurement]:
        """Measure what process ``process`` of ``run`` lacks, on architectures that have a device here.

        ``rows`` limits it to cases with these row_ids. Yields and appends one measurement at a time.
        """
        for arch, cases in self.cases().items():
            found = manifest.find_device(arch)
            if found is not None:
                wanted = [case for case in cases if rows is None or case.row_id in rows]
                yield from measure_process(run, wanted, replace(self._worker_config, device=found[0]), process)

    @property
    def _worker_config(self) -> WorkerConfig:
        return WorkerConfig(
            "cuda", seed=self.seed, libraries=self.libraries, methods=self.methods, case_timeout_s=self.case_timeout_s
        )


def why_not_timed(missing: Sequence[Architecture]) -> str:
    """One sentence on what is done in place of timing on architectures that have no device here."""
    names = ", ".join(arch.label for arch in missing)
    return (
        f"this machine has no {names} device (found {manifest.device_name() or 'no CUDA device'}); "
        f"kernels were checked in the interpreter and compiled for {names} instead"
    )


def calibration_of(run: Run) -> dict[str, float]:
    """Medians of what the timed rows say of the machine: floor, quantum, copy bandwidth, rate of a product."""
    rows = run.rows()
    known = {name: rows[name].dropna() for name in ("floor_us", "quantum_us", "copy_gbps", "matmul_tflops")}
    return {name: float(values.median()) for name, values in known.items() if len(values)}
