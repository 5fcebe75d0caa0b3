"""The provider ``reference``: every operation in torch, the definition that all others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, Shape


class ReferenceProvider:
    """The operations' own torch references, on any device."""

    name = "reference"
    summary = "torch, the definition of the bytes"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        pass

    def why_not(
        self, operation: Operation, fmt: CacheFormat, arch: Architecture, shape: Shape | None = None
    ) -> str | None:
        """torch runs everywhere, so only where an operation's reference is not worth timing."""
        if operation.times_reference:
            return None
        return f"the torch reference of {operation.name} is its definition, and not worth timing"

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The operation's reference on these inputs."""
        return operation.reference(fmt, inputs)

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """None: it converts by torch's own kernels."""
        return None

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """None: not a Triton kernel."""
        return None

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """None: the kernels are torch's."""
        return None

    def version(self) -> str | None:
        """torch's version."""
        return str(torch.__version__)


PROVIDERS = (ReferenceProvider,)
