"""The provider ``triton``: this project's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import triton

from dsmla_bench.kernels.arch import KNOWN, Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, Shape


class TritonProvider:
    """Our kernels, on every architecture that has the conversions a format needs."""

    name = "triton"
    summary = "this project's Triton kernels"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        pass

    def why_not(
        self, operation: Operation, fmt: CacheFormat, arch: Architecture, shape: Shape | None = None
    ) -> str | None:
        """A conversion that the architecture lacks is the only reason."""

        def serves(known: Architecture) -> bool:
            return fmt.conversion(known) is not None and (known.has_e4m3 or not operation.needs_e4m3)

        if serves(arch):
            return None
        name = fmt.name if fmt.conversion(arch) is None else operation.name
        first = next((known.label for known in KNOWN if serves(known)), "none of those known")
        return f"{name} needs an exact conversion that {arch.label} lacks; the first with it is {first}"

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The launch that the operation plans for these inputs."""
        launch = operation.plan(fmt, inputs, arch.number)
        return launch.run if launch is not None else _nothing

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """By the format's ``encode``; reading converts the same way everywhere."""
        return fmt.conversion(arch) if operation.encodes else None

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """The launch that the operation plans; None when there is nothing to do."""
        return operation.plan(fmt, inputs, arch)

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """Of what Triton compiled for these inputs; launches once. None where Triton interprets."""
        launch = operation.plan(fmt, inputs, arch.number)
        return launch.binary_sha256() if launch is not None else None

    def version(self) -> str | None:
        """Triton's version."""
        return str(triton.__version__)


def _nothing() -> None:
    """What zero tokens need."""


PROVIDERS = (TritonProvider,)
