"""Triton's interpreter with its floating-point conversions and arithmetic corrected.

``TRITON_INTERPRET=1``, set before Triton is imported, makes ``@triton.jit`` functions run in numpy on the CPU. Its
conversions are wrong in ways that compiled kernels are not (Triton 3.6 to 3.9, ``_convert_float``):

* to e4m3, a mantissa that rounds up does not carry into the exponent (124.5 becomes 64 instead of 128), ties go away
  from zero instead of to even, and nothing saturates;
* to bf16, values are truncated instead of rounded;
* a product of bf16 matrices (``tl.dot``) multiplies their bits as if they were integers;
* a fused multiply-add rounds twice, the smaller or larger of a number and NaN is NaN, and a NaN that arithmetic makes
  may be negative;
* with numpy 2.4 and Triton 3.6, a tensor of one element is refused as a loop bound.

``corrected_conversions`` puts this project's own definitions, which are tested against the hardware's rule, in the
place of those conversions while it is active. Every interpreted check in this project runs inside it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
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
    """While this is active, interpreted kernels convert (fp32, fp16, bf16, e4m3) and compute as compiled ones do."""
    with (
        mock.patch.object(interpreter, "_convert_float", _convert_float),
        mock.patch.object(interpreter, "_patch_lang_tensor", _patch_lang_tensor),
        contextlib.ExitStack() as methods,
    ):
        for name, method in _ARITHMETIC.items():
            methods.enter_context(mock.patch.object(interpreter.InterpreterBuilder, name, method))
        yield


_patch_lang_tensor_of_triton = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """Replacement of the interpreter's function of that name: a tensor of one element of any rank is an index."""
    _patch_lang_tensor_of_triton(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _elementwise(operation: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the interpreter: ``operation`` on the operands' values, where a NaN comes out positive."""

    def method(builder: Any, *operands: Any) -> Any:
        with np.errstate(all="ignore"):
            found = operation(*(operand.data for operand in operands))
        found = np.where(np.isnan(found), np.abs(found), found).astype(operands[0].data.dtype)
        return interpreter.TensorHandle(found, operands[0].dtype.scalar)

    return method


def _fused_multiply_add(x: Any, y: Any, z: Any) -> Any:
    """fp32 x · y + z, rounded once.

    The product is exact in fp64. A sum that is not is made odd in its last place, which keeps the next rounding from
    mistaking it for a tie.
    """
    product, z = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = product + z
    part = total - product
    rest = (product - (total - part)) + (z - part)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(rest) & (rest != 0)
    odd = np.nextafter(total, np.where(rest > 0, np.inf, -np.inf))
    return np.where(inexact & even, odd, total).astype(np.float32)


def _create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """Replacement of the interpreter's method of that name: the product in fp32, which holds every operand exactly."""
    product = np.matmul(_fp32(a), _fp32(b), dtype=np.float32) + d.data
    return interpreter.TensorHandle(product, d.dtype.scalar)


def _fp32(operand: Any) -> Any:
    """The values of an operand of a matrix product."""
    return _convert_float(operand.data, operand.dtype.scalar, tl.float32, None).view(np.float32)


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


_ARITHMETIC = {
    "create_fmul": _elementwise(np.multiply),
    "create_fdiv": _elementwise(np.divide),
    "create_precise_divf": _elementwise(np.divide),
    "create_fma": _elementwise(_fused_multiply_add),
    "create_minnumf": _elementwise(np.fmin),
    "create_maxnumf": _elementwise(np.fmax),
    "create_dot": _create_dot,
}


def _bits(values: torch.Tensor, unsigned: Any) -> Any:
    return values.view(torch.uint8).numpy().view(unsigned)


_TO_FP32: dict[Any, Any] = {
    tl.float32: lambda bits: torch.from_numpy(bits.view(np.float32)),
    tl.float16: lambda bits: torch.from_numpy(bits.view(np.float16)).float(),
    # The product quiets NaN: numpy's maximum of a signalling one and a number is NaN.
    tl.bfloat16: lambda bits: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float() * 1.0,
    tl.float8e4nv: lambda bits: numerics.fp32_from_e4m3(torch.from_numpy(bits.view(np.uint8))),
}
_FROM_FP32: dict[Any, Any] = {
    tl.float32: lambda values: _bits(values, np.uint32),
    tl.float16: lambda values: _bits(values.half(), np.uint16),
    tl.bfloat16: lambda values: _bits(numerics.bf16_from_fp32(values), np.uint16),
    tl.float8e4nv: lambda values: numerics.e4m3_from_fp32(values).numpy(),
}
