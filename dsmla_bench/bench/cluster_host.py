"""What runs on a node of a cluster: an actor that holds one GPU and one object that works on it."""

from __future__ import annotations

import functools
import hashlib
import importlib
from pathlib import Path
from typing import Any

import dsmla_bench
from dsmla_bench.bench.gpus import machine


class Host:
    """Holds the GPU that Ray gave its process. ``factory`` ("module:name") makes the object when it is first called."""

    def __init__(self, machine_module: str, factory: str, arguments: tuple[Any, ...]) -> None:
        self._machine, self._factory, self._arguments = machine_module, factory, arguments

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the GPU, with its index on the node, the node's packages and this code's hash.

        The index is None where the node's CUDA_VISIBLE_DEVICES names GPUs by uuid, which Ray passes on.
        """
        import ray

        (name,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        here = machine(self._machine)
        found = {**here.describe_device(0), "index": int(name) if name.isdecimal() else None}
        return {**found, "packages": here.describe()["packages"], "code_sha256": code_sha256()}

    def call(self, method: str, *arguments: Any) -> Any:
        """What the object's method answers."""
        return getattr(self._object, method)(*arguments)

    @functools.cached_property
    def _object(self) -> Any:
        module, _, name = self._factory.partition(":")
        return getattr(importlib.import_module(module), name)(*self._arguments)


@functools.cache
def code_sha256() -> str:
    """SHA-256 of the sources of this package."""
    folder = Path(dsmla_bench.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()
