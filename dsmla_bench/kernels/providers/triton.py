"""The provider ``triton``: this project's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import triton

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.operations import Operation


class TritonProvider:
    """Our kernels, on every architecture that has the conversions a format needs."""

    name = "triton"
    summary = "this project's Triton kernels"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        pass

    def why_not(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """A missing e4m3 conversion is the only reason."""
        if fmt.conversion(arch) is None:
            return f"{fmt.name} needs the e4m3 conversion of sm_89 or later; {arch.label} has none"
        return None

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The launch that the operation plans for these inputs."""
        launch = operation.plan(fmt, inputs, arch.number)
        return launch.run if launch is not None else _nothing

    def version(self) -> str | None:
        """Triton's version."""
        return str(triton.__version__)


def _nothing() -> None:
    """What zero tokens need."""


PROVIDERS = (TritonProvider,)
