"""A kernel launch as a value: run it, or hand it to a compiler without a GPU.

An operation plans a ``Launch`` from its arguments; ``run`` launches it on the current stream, and ``bench.compile``
compiles the very same one for any architecture from the arguments' types. Work that takes several kernels is a chain of
launches, each of which names the next. Floating-point fusion is off in every launch: Triton's default for it changes
between releases, and the bytes must not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton


@dataclass(frozen=True)
class Launch:
    """One kernel with its grid, run-time arguments in order, compile-time arguments and warps per program.

    names says which of the operation's tensors each of the leading arguments is, an absent one too; a name that the
    operation does not take is that of a workspace, which the plan made. ``then`` is launched after it on the same
    stream.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    names: tuple[str, ...] = ()
    then: Launch | None = None

    @property
    def steps(self) -> tuple[Launch, ...]:
        """This launch and all that follow it."""
        return (self, *(self.then.steps if self.then is not None else ()))

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return next(argument.device for argument in self.args if isinstance(argument, torch.Tensor))

    def run(self) -> None:
        """Launch every step on the current stream of the arguments' device.

        Where Triton interprets, this interprets. Raises ValueError for tensors that compiled kernels cannot reach.
        """
        self.start()

    def start(self) -> tuple[Any, ...]:
        """As ``run``; returns what Triton compiled for each step, Nones where Triton interprets."""
        return tuple(step._start() for step in self.steps)

    def compile(self) -> None:
        """Compile every step for the current CUDA device, which Triton keeps on disk, and launch none.

        The arguments may be on the meta device: their types, shapes and strides decide what is compiled.
        """
        for step in self.steps:
            step.kernel.warmup(*step.args, grid=step.grid, **step.constants, **step._options)

    def binary_sha256(self) -> str | None:
        """SHA-256 of what Triton compiled for every step; launches them once. None where Triton interprets."""
        cubins = [kernel.asm["cubin"] for kernel in self.start() if kernel is not None]
        return hashlib.sha256(b"".join(cubins)).hexdigest() if cubins else None

    def _start(self) -> Any:
        """Launch this step alone; returns Triton's compiled kernel, None where Triton interprets."""
        device = self.device
        if device.type != "cuda" and isinstance(self.kernel, triton.runtime.JITFunction):
            raise ValueError(f"the tensors are on {device}; put them on a CUDA device, or set TRITON_INTERPRET=1")
        with _current(device):
            return self.kernel[self.grid](*self.args, **self.constants, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": False}


def _current(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes a CUDA device the current one. Where it is already, asking is cheaper than setting it twice."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(device)


@functools.cache
def device_arch(device: torch.device) -> int:
    """The compute capability of a CUDA device times ten, 0 for a CPU (where Triton interprets)."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return int(10 * major + minor)


def block_width(width: int) -> int:
    """``width`` rounded up to a power of two, and 16 at least: the width of a register block that holds it."""
    return max(16, 1 << (width - 1).bit_length())


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up. As ``triton.cdiv``, whose wrapper costs an eager call as much as checking a cache."""
    return -(-dividend // divisor)
