"""Triton's interpreter with its floating-point conversions corrected.

``TRITON_INTERPRET=1``, set before Triton is imported, makes ``@triton.jit`` functions run in numpy on the CPU. Its
conversions are wrong in ways that compiled kernels are not (Triton 3.6 to 3.9, ``_convert_float``):

* to e4m3, a mantissa that rounds up does not carry into the exponent (124.5 becomes 64 instead of 128), ties go away
  from zero instead of to even, and nothing saturates;
* to bf16, values are truncated instead of rounded;
* with numpy 2.4 and Triton 3.6, a tensor of one element is refused as a loop bound.

``corrected_conversions`` puts this project's own definitions, which are tested against the hardware's rule, in the
place of those conversions while it is active. Every interpreted check in this project runs inside it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from dsmla_bench.kernels.formats import numerics


def is_interpreting() -> bool:
    """Whether this process was started with Triton's interpreter switched on."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextlib.contextmanager
def corrected_conversions() -> Iterator[None]:
    """While this is active, interpreted kernels convert between fp32, bf16 and e4m3 as compiled ones do."""
    with (
        mock.patch.object(interpreter, "_convert_float", _convert_float),
        mock.patch.object(interpreter, "_patch_lang_tensor", _patch_lang_tensor),
    ):
        yield


_patch_lang_tensor_of_triton = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """Replacement of the interpreter's function of that name: a tensor of one element of any rank is an index."""
    _patch_lang_tensor_of_triton(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _convert_float(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
    """Replacement of the interpreter's function of that name: the bits of ``data`` converted, as unsigned integers."""
    if source == target:
        return data
    if source not in _TO_FP32 or target not in _FROM_FP32:
        raise NotImplementedError(
            f"no corrected conversion from {source} to {target}; add it to kernels/interpreter.py"
        )
    # Copied to one dimension first: torch takes neither numpy scalars nor read-only arrays.
    bits = np.array(data).reshape(-1)
    return _FROM_FP32[target](_TO_FP32[source](bits)).reshape(np.shape(data))


def _bits(values: torch.Tensor, unsigned: Any) -> Any:
    return values.view(torch.uint8).numpy().view(unsigned)


_TO_FP32: dict[Any, Any] = {
    tl.float32: lambda bits: torch.from_numpy(bits.view(np.float32)),
    tl.float16: lambda bits: torch.from_numpy(bits.view(np.float16)).float(),
    tl.bfloat16: lambda bits: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float(),
    tl.float8e4nv: lambda bits: numerics.fp32_from_e4m3(torch.from_numpy(bits.view(np.uint8))),
}
_FROM_FP32: dict[Any, Any] = {
    tl.float32: lambda values: _bits(values, np.uint32),
    tl.float16: lambda values: _bits(values.half(), np.uint16),
    tl.bfloat16: lambda values: _bits(numerics.bf16_from_fp32(values), np.uint16),
    tl.float8e4nv: lambda values: numerics.e4m3_from_fp32(values).numpy(),
}
