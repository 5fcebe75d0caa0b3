"""What a provider is: an implementation of the operations, or, in words, the reason why it has none.

A provider is one file whose ``PROVIDERS`` tuple names a class like this protocol. It is constructed with ``libraries``,
the paths of compiled operator libraries by provider name, so that a fresh build can be measured without installing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, Shape


class Provider(Protocol):
    """An implementation of some operations for some formats."""

    name: str
    summary: str

    def __init__(self, libraries: Mapping[str, Path]) -> None: ...

    def why_not(
        self, operation: Operation, fmt: CacheFormat, arch: Architecture, shape: Shape | None = None
    ) -> str | None:
        """Why it cannot serve this case on this architecture, in one sentence; None when it can. Needs no GPU.

        Without a shape: why it can serve none.
        """

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """A function that does the operation on these inputs, on the current stream, without synchronising."""

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """How it converts on this architecture, as ``CacheFormat.conversion`` says it; None where that is not known."""

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """The Triton launch that ``bind`` would make for compute capability ``arch`` / 10; None where it is no Triton.

        With it a kernel is also checked in the interpreter and cross-compiled on machines without a GPU.
        """

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """SHA-256 of the machine code that serves this case, or of the file that holds it; None where there is none."""

    def version(self) -> str | None:
        """The version of the implementation, or None when there is none to name."""
