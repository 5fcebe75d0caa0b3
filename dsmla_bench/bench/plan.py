"""What a sweep is going to do, settled before it starts: its configuration, its cases on every architecture, its cost.

``SweepPlan`` is everything that decides which rows a run will hold; its ``config`` goes into the manifest with a hash,
and is what a resumed sweep must share with the run.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dsmla_bench.bench import manifest
from dsmla_bench.bench.cases import Axes, expand, why_not
from dsmla_bench.bench.device import METHODS
from dsmla_bench.bench.fleet import Fleet, Lane, LocalLane, on_gpu
from dsmla_bench.bench.gpus import Gpu, Machine, machine
from dsmla_bench.bench.spread import begun_on, seconds_of, spread
from dsmla_bench.bench.sweep import check_offline, measure, measure_process
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.providers import Provider, load_providers
from dsmla_bench.places import Where
from dsmla_bench.results import Run, config_hash
from dsmla_bench.rows import Case, Measurement

MOST_SEED = 2**40
"""Larger ones overflow what generators take once buffers are numbered."""
MOST_TIMEOUT_S = 86_400.0
START_S, OFFLINE_S = 8.0, 0.3
"""Seconds: a worker's start on an H200, and a case checked and compiled without a device on two CPU cores."""


@dataclass(frozen=True)
class SweepPlan:
    """One sweep. ``libraries`` maps providers to compiled operator libraries; ``processes`` are per timed case.

    ``devices``: the indices of those to measure on at once, or "all"; None for the first one of every architecture.
    """

    axes: Axes
    architectures: tuple[Architecture, ...]
    processes: int = 5
    seed: int = 0
    methods: Sequence[str] = METHODS
    libraries: Mapping[str, str] = field(default_factory=dict)
    case_timeout_s: float = 120.0
    devices: tuple[int, ...] | Literal["all"] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MOST_SEED:
            raise ValueError(f"the seed must be from 0 to {MOST_SEED}, found {self.seed}")
        if not 0 < self.case_timeout_s <= MOST_TIMEOUT_S:
            raise ValueError(f"a case may take at most {MOST_TIMEOUT_S:g} s, found {self.case_timeout_s:g}")
        if isinstance(self.devices, tuple):
            self._check_devices(self.devices)

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
        return {
            **{name: facts[name] for name in ("tool_version", "packages", "git")},
            "devices": {arch.name: [gpu.uuid for gpu in self.gpus(arch)] for arch in self.architectures},
            "libraries": {provider: manifest.file_sha256(path) for provider, path in self.libraries.items()},
        }

    def cases(self) -> dict[Architecture, list[Case]]:
        """Every case by architecture."""
        return {arch: expand(self.axes, arch) for arch in self.architectures}

    def gpus(self, arch: Architecture) -> list[Gpu]:
        """The devices that measure the cases of an architecture."""
        found = [gpu for gpu in self._machine.find_devices() if gpu.arch == arch.name]
        if self.devices is None:
            return found[:1]
        return [gpu for gpu in found if self.devices == "all" or gpu.index in self.devices]

    def shares(self, begun: Sequence[Measurement] = ()) -> dict[Gpu, list[Case]]:
        """What each device measures, given what was measured already."""
        places, shares = begun_on(begun), {}
        for arch, cases in self.cases().items():
            gpus = self.gpus(arch)
            found = spread(cases, gpus, places, self._seconds_of) if gpus else {}
            shares.update({gpu: found[gpu.uuid] for gpu in gpus})
        return shares

    def missing(self) -> list[Architecture]:
        """The architectures that have no device here: their kernels are checked and compiled, not timed."""
        return [arch for arch in self.architectures if not self.gpus(arch)]

    def steps(self) -> int:
        """How many measurements the sweep takes at most."""
        missing = self.missing()
        return sum(len(cases) * (1 if arch in missing else self.processes) for arch, cases in self.cases().items())

    def seconds(self) -> float:
        """About how long the sweep takes; other machines than the ones named at the constants differ."""
        missing, cases = self.missing(), self.cases()
        offline = sum(2 * START_S + OFFLINE_S * len(cases[arch]) for arch in missing)
        return offline + max((self.seconds_of(share) for share in self.shares().values()), default=0.0)

    def seconds_of(self, cases: Sequence[Case]) -> float:
        """About how long one device takes for these cases, all processes together."""
        return self.processes * (START_S + sum(map(self._seconds_of, cases)))

    def create_run(self, results: Where) -> Run:
        """A new run folder below ``results`` with the plan's manifest."""
        facts = self.describe()
        if devices := [self._describe_device(gpu) for arch in self.architectures for gpu in self.gpus(arch)]:
            facts |= {"device": devices[0], "devices": devices}
        if missing := self.missing():
            facts["not_timed"] = why_not_timed(missing)
        facts["providers"] = {name: provider.version() for name, provider in self._providers.items()}
        config = {"config": self.config, "config_sha256": config_hash(self.config), "seed": self.seed}
        settings = {**config, "identity": self.identity(facts)}
        return Run.create(results, {"argv": ["dsmla-bench", *sys.argv[1:]], **settings, **facts})

    def run(self, run: Run) -> Generator[Measurement]:
        """Measure what ``run`` does not hold yet; yields and appends one measurement at a time."""
        shares = self.shares(run.measurements)
        with contextlib.closing(self._measure(run, shares)) as measurements:
            for measurement in measurements:
                self._list_device(run, shares, measurement)
                yield measurement
        for arch in self.missing():
            yield from check_offline(run, self.cases()[arch], self._worker_config)

    def run_process(self, run: Run, process: int, rows: Collection[str] | None = None) -> Generator[Measurement]:
        """Measure what process ``process`` of ``run`` lacks, on architectures that have a device here.

        ``rows`` limits it to cases with these row_ids. Yields and appends one measurement at a time.
        """
        for arch, cases in self.cases().items():
            for gpu in self.gpus(arch)[:1]:
                wanted = [case for case in cases if rows is None or case.row_id in rows]
                yield from measure_process(run, wanted, on_gpu(self._worker_config, gpu), process)

    def _check_devices(self, indices: Sequence[int]) -> None:
        """Raise ValueError for a device that is not here, or is of an architecture that is not swept."""
        here = {gpu.index: gpu for gpu in self._machine.find_devices()}
        names = [arch.name for arch in self.architectures]
        for index in indices:
            if index not in here:
                raise ValueError(f"no device {index} here; found: {', '.join(map(str, here.values())) or 'none'}")
            if here[index].arch not in names:
                raise ValueError(f"{here[index]} is none of the swept architectures, {', '.join(names)}")

    def _measure(self, run: Run, shares: Mapping[Gpu, Sequence[Case]]) -> Generator[Measurement]:
        """Measure the shares, on several devices at once."""
        if len(shares) == 1:
            ((gpu, cases),) = shares.items()
            return measure(run, cases, on_gpu(self._worker_config, gpu), self.processes)
        lanes = [LocalLane(self._worker_config, gpu, self.processes) for gpu in shares]
        return self._measure_by(lanes, run, shares)

    def _measure_by(
        self, lanes: Sequence[Lane], run: Run, shares: Mapping[Gpu, Sequence[Case]]
    ) -> Generator[Measurement]:
        cases = {gpu.uuid: share for gpu, share in shares.items()}
        return Fleet(run, lanes, cases, self.processes, self.seed).measurements()

    def describe(self) -> dict[str, Any]:
        """What measures, without its devices: tool, packages, commit."""
        return manifest.describe()

    def _list_device(self, run: Run, gpus: Collection[Gpu], measurement: Measurement) -> None:
        """List the device of a measurement in the manifest too: a resumed run may have other nodes than it began on."""
        listed, uuid = run.manifest.setdefault("devices", []), measurement.facts.get("device_uuid")
        if any(device.get("uuid") == uuid for device in listed):
            return
        if new := [self._describe_device(gpu) for gpu in gpus if gpu.uuid == uuid]:
            listed += new
            run.write_manifest()

    def _describe_device(self, gpu: Gpu) -> dict[str, Any]:
        return self._machine.describe_device(gpu.local_index)

    @property
    def _machine(self) -> Machine:
        return machine(self._worker_config.machine)

    @functools.cached_property
    def _providers(self) -> Mapping[str, Provider]:
        return load_providers({provider: Path(path) for provider, path in self.libraries.items()})

    def _seconds_of(self, case: Case) -> float:
        """About how long one process measures a case; none for one that its provider refuses."""
        provider = self._providers.get(case.provider)
        return 0.0 if provider is not None and why_not(provider, case) else seconds_of(case)

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


def calibrations(run: Run) -> dict[str, Any]:
    """What a manifest says of its devices when all is measured: the calibration of each, and of the first by itself."""
    devices = run.manifest.get("devices") or []
    if len(devices) < 2:
        return {"calibration": calibration_of(run.rows())}
    rows = run.rows()
    made = [
        {**device, "calibration": calibration_of(rows[rows["device_uuid"] == device.get("uuid")])} for device in devices
    ]
    return {"calibration": made[0]["calibration"], "devices": made}


def calibration_of(rows: pd.DataFrame) -> dict[str, float]:
    """Medians of what timed rows say of the machine: floor, quantum, copy bandwidth, rate of a product."""
    known = {name: rows[name].dropna() for name in ("floor_us", "quantum_us", "copy_gbps", "matmul_tflops")}
    return {name: float(values.median()) for name, values in known.items() if len(values)}
