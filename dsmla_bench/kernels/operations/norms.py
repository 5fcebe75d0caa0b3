"""RMSNorm and LayerNorm of rows in fp32, in torch (the definition) and in Triton.

Both divide and take the root correctly rounded and multiply in the same order, so that torch and Triton differ in the
order of a row's sum alone, and with it in the last bits of one factor per row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.numerics import divide, within

WEIGHT_TYPES = (torch.float32, torch.bfloat16)


def rms_norm(values: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """values [T, n], weight [n] → fp32 [T, n]: x · (1 / sqrt(mean(x²) + eps)) · weight."""
    values = values.float()
    mean_square = divide((values * values).sum(-1, keepdim=True), values.shape[-1])
    return values * _inverse_root(mean_square, eps) * weight.float()


def layer_norm(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """values [T, n], weight and bias [n] → fp32 [T, n]: (x - mean) · (1 / sqrt(variance + eps)) · weight + bias."""
    values = values.float()
    centred = values - divide(values.sum(-1, keepdim=True), values.shape[-1])
    variance = divide((centred * centred).sum(-1, keepdim=True), values.shape[-1])
    return centred * _inverse_root(variance, eps) * weight.float() + bias.float()


def _inverse_root(mean: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean + eps), both rounded correctly; the root by way of fp64, as torch's fp32 one on a CPU is not."""
    return (mean + eps).double().sqrt().float().reciprocal()


def check_weight(name: str, weight: torch.Tensor, width: int) -> None:
    """A contiguous vector [width] in fp32 or bf16. Raises ValueError."""
    if weight.dtype not in WEIGHT_TYPES or weight.shape != (width,) or not weight.is_contiguous():
        wanted = " or ".join(map(str, WEIGHT_TYPES))
        raise ValueError(f"{name} must be {wanted} [{width}], contiguous; found {weight.dtype} {list(weight.shape)}")


@triton.jit
def load_rows(row_ptr, live, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows at row_ptr [T] → fp32 [T, BLOCK], zeros past WIDTH and where ``live`` is false."""
    column = tl.arange(0, BLOCK)
    return tl.load(row_ptr[:, None] + column, within(live, column, WIDTH), other=0.0).to(tl.float32)


@triton.jit
def store_bf16(row_ptr, values, live, WIDTH: tl.constexpr):
    """The first WIDTH columns of fp32 values [T, BLOCK] to the rows at row_ptr [T], rounded to bf16."""
    column = tl.arange(0, values.shape[1])
    tl.store(row_ptr[:, None] + column, values.to(tl.bfloat16), within(live, column, WIDTH))


@triton.jit
def load_weight(weight_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A weight as fp32 [BLOCK], zeros past WIDTH."""
    column = tl.arange(0, BLOCK)
    return tl.load(weight_ptr + column, column < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def inverse_root(total, EPS: tl.constexpr, WIDTH: tl.constexpr):
    """fp32 sums of squares [T] over WIDTH values → 1 / sqrt(mean + EPS), fp32 [T, 1]."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, WIDTH * 1.0) + EPS))[:, None]


@triton.jit
def rms_norm_rows(values, weight, EPS: tl.constexpr, WIDTH: tl.constexpr):
    """fp32 [T, n] with zeros past WIDTH, weight fp32 [n] → fp32 [T, n]."""
    return values * inverse_root(tl.sum(values * values, axis=1), EPS, WIDTH) * weight[None, :]
