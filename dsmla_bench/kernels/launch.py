"""A kernel launch as a value: run it, or hand it to a compiler without a GPU.

An operation plans a ``Launch`` from its arguments; ``run`` launches it on the current stream, and ``bench.compile``
compiles the very same one for any architecture from the arguments' types. Floating-point fusion is off in every launch:
Triton's default for it changes between releases, and the bytes must not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton


@dataclass(frozen=True)
class Launch:
    """One kernel with its grid, run-time arguments in order, compile-time arguments and warps per program."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3

    def run(self) -> Any:
        """Launch on the current stream of the arguments' device; returns Triton's compiled kernel.

        Where Triton interprets, this interprets, and returns None. Raises ValueError for tensors that compiled kernels
        cannot reach.
        """
        device = next(argument.device for argument in self.args if isinstance(argument, torch.Tensor))
        if device.type != "cuda" and isinstance(self.kernel, triton.runtime.JITFunction):
            raise ValueError(f"the tensors are on {device}; put them on a CUDA device, or set TRITON_INTERPRET=1")
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            return self.kernel[self.grid](
                *self.args,
                **self.constants,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
                enable_fp_fusion=False,
            )


@functools.cache
def device_arch(device: torch.device) -> int:
    """The compute capability of a CUDA device times ten, 0 for a CPU (where Triton interprets)."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return int(10 * major + minor)


def block_width(width: int) -> int:
    """``width`` rounded up to a power of two, and 16 at least: the width of a register block that holds it."""
    return max(16, int(triton.next_power_of_2(width)))
