"""The GPUs that there are, and what tells them apart. Needs no torch, as a cluster's actors need none."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol, cast


@dataclass(frozen=True)
class Gpu:
    """One GPU: its index on its machine, name, uuid and architecture ("sm90"). ``node`` is its machine in a cluster.

    The index is None where a node names its GPUs by uuid (CUDA_VISIBLE_DEVICES=GPU-5c0e… or MIG-…).
    """

    index: int | None
    name: str
    uuid: str
    arch: str
    node: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """What every row that was measured on it says of it."""
        return {"device": self.name, "device_uuid": self.uuid, "device_index": self.index}

    @property
    def local_index(self) -> int:
        """Its index on this machine, where every GPU has one."""
        assert self.index is not None
        return self.index

    def __str__(self) -> str:
        which = self.uuid if self.index is None else self.index
        return f"device {which}{f' of node {self.node}' if self.node else ''} ({self.name}, {self.arch})"


class Machine(Protocol):
    """A module that knows the devices of the machine that it is imported on, as ``bench.manifest`` does."""

    def find_devices(self) -> list[Gpu]:
        """Every device, by index."""
        ...

    def describe_device(self, index: int) -> dict[str, Any]:
        """What a manifest says of a device."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the software, ``packages`` for one."""
        ...


def machine(module: str) -> Machine:
    """The machine whose name is in ``WorkerConfig.machine``."""
    return cast("Machine", importlib.import_module(module))
