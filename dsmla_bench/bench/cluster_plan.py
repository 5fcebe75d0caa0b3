"""A sweep whose devices are those of a Ray cluster. Its cases, rows and resuming are those of any other sweep."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dsmla_bench.bench.cluster import Cluster, ClusterLane
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.plan import SweepPlan
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Measurement

WORKERS = "dsmla_bench.bench.workers:Workers"
"""What works on each GPU."""


@dataclass(frozen=True)
class ClusterPlan(SweepPlan):
    """One sweep on all GPUs of the cluster that are of its architectures; ``libraries`` are paths on the nodes."""

    cluster: Cluster = field(kw_only=True)

    @classmethod
    def of(cls, plan: SweepPlan, address: str, *, everywhere: bool) -> ClusterPlan:
        """A plan for this machine on the cluster at ``address``; ``everywhere``: on all architectures that it has.

        Raises ValueError, in one sentence, without Ray or a cluster.
        """
        config = plan._worker_config
        cluster = Cluster(address, config.machine, WORKERS, (config, plan.processes))
        settings = {each.name: getattr(plan, each.name) for each in fields(plan)}
        if everywhere:
            found = sorted({Architecture.parse(seat.gpu.arch) for seat in cluster.seats})
            settings["architectures"] = tuple(found) or plan.architectures
        return cls(**settings, cluster=cluster)

    def gpus(self, arch: Architecture) -> list[Gpu]:
        """Those of the cluster that are of the architecture."""
        return [seat.gpu for seat in self.cluster.seats if seat.gpu.arch == arch.name]

    def identity(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """As of any sweep, but for devices: nodes come and go, and a row says which one it was measured on."""
        return {**super().identity(facts), "devices": "a cluster's"}

    def describe(self) -> dict[str, Any]:
        """Tool and commit of this machine, and the packages of the nodes, since they measure."""
        found = super().describe()
        packages = [seat.facts["packages"] for seat in self.cluster.seats if seat.gpu.arch in self._arch_names]
        for name in sorted({name for those in packages for name in those}):
            versions = sorted({str(those.get(name)) for those in packages})
            if len(versions) > 1:
                warnings.warn(f"the nodes have different versions of {name}: {', '.join(versions)}", stacklevel=2)
        return {**found, "packages": packages[0]} if packages else found

    @property
    def _arch_names(self) -> list[str]:
        return [arch.name for arch in self.architectures]

    def _measure(self, run: Run, shares: Mapping[Gpu, Sequence[Case]]) -> Generator[Measurement]:
        lanes = [ClusterLane(self.cluster, seat) for seat in self.cluster.seats if seat.gpu in shares]
        return self._measure_by(lanes, run, shares)

    def _describe_device(self, gpu: Gpu) -> dict[str, Any]:
        return next(seat.facts for seat in self.cluster.seats if seat.gpu == gpu)
