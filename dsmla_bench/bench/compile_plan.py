"""What ``dsmla-bench compile`` is going to do: compile every kernel that a sweep would launch, for every target.

Its rows are those that a sweep leaves where it finds no device, less the interpreter's check of the bytes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dsmla_bench.bench import manifest
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.bench.cross_compile import compile_cases
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.places import Where
from dsmla_bench.results import Run, config_hash
from dsmla_bench.rows import Case, Measurement


@dataclass(frozen=True)
class CompilePlan:
    """Kernels to compile in at most ``workers`` processes; ``libraries`` maps providers to operator libraries."""

    axes: Axes
    architectures: tuple[Architecture, ...]
    workers: int
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """What decides the run's rows, as plain data."""
        return {**self.axes.as_dict(), "architectures": [arch.name for arch in self.architectures]}

    def cases(self) -> list[Case]:
        """Every case, target by target."""
        return [case for arch in self.architectures for case in expand(self.axes, arch)]

    def create_run(self, results: Where) -> Run:
        """A new run folder below ``results`` with the plan's manifest."""
        names = ", ".join(arch.label for arch in self.architectures)
        settings = {"config": self.config, "config_sha256": config_hash(self.config)}
        not_timed = f"kernels were compiled for {names}, and none was run"
        facts = {**manifest.describe(), "targets": describe_targets(self.architectures), "not_timed": not_timed}
        return Run.create(results, {"argv": ["dsmla-bench", *sys.argv[1:]], **settings, **facts})

    def run(self, run: Run) -> Generator[Measurement]:
        """Compile everything; yields and appends one measurement at a time."""
        config = WorkerConfig("compile", libraries=self.libraries)
        with contextlib.closing(compile_cases(self.cases(), config, self.workers)) as compiled:
            for measurement in compiled:
                run.append(measurement)
                yield measurement


def describe_targets(architectures: Sequence[Architecture]) -> dict[str, Any]:
    """Compute capability of each architecture, and the published figures of the part that stands for it."""
    found = {}
    for arch in architectures:
        part, limits = arch.part, arch.limits
        facts = {"part": part.name, "sms": part.sms, "l2_bytes": part.l2_bytes, "gbps": part.gbps} if part else {}
        per_sm = {"per_sm": asdict(limits)} if limits else {}
        found[arch.name] = {"compute_capability": f"{arch.major}.{arch.minor}", **facts, **per_sm}
    return found
