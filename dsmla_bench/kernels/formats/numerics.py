"""Conversions that several formats share, in torch (the definition) and in Triton (the same bytes).

The rules, of NVIDIA's conversion instructions (PTX ISA, ``cvt`` with ``.rn.satfinite``):

* e4m3: round to nearest, ties to even; beyond ±448 and for ±Inf the result is ±448 (0x7E, 0xFE); NaN becomes 0x7F.
* e2m1: magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code; beyond ±6 and for ±Inf ±6; NaN becomes +6 (0x7).
* bf16: NaN becomes 0x7FFF.
* ue8m0: byte b is 2^(b - 127), and 255 is NaN (OCP Microscaling Formats 1.0).

The torch side clamps before it converts, because what ``.to(torch.float8_e4m3fn)`` does beyond 448 has changed between
releases, and divides by tensors, because torch on CUDA divides by a Python number through its rounded reciprocal.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.arch import Architecture

E4M3_MAX = 448.0
BF16_NAN = 0x7FFF


def e4m3_conversion(arch: Architecture) -> str | None:
    """``CacheFormat.conversion`` of formats with e4m3 and nothing narrower."""
    return "native" if arch.has_e4m3 else None


def divide(numerator: torch.Tensor, denominator: float) -> torch.Tensor:
    """``numerator / denominator`` in fp32, correctly rounded on every device."""
    return numerator / torch.full_like(numerator, denominator)


def e4m3_from_fp32(values: torch.Tensor) -> torch.Tensor:
    """fp32 of any shape → e4m3 bytes (uint8), by the rule above."""
    codes = values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.masked_fill_(values.isnan(), 0x7F)


def fp32_from_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """e4m3 bytes (uint8) of any shape → fp32, exact."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def bf16_from_fp32(values: torch.Tensor) -> torch.Tensor:
    """fp32 of any shape → bf16, nearest even, with the hardware's NaN."""
    bits = values.to(torch.bfloat16).view(torch.int16)
    return bits.masked_fill_(values.isnan(), BF16_NAN).view(torch.bfloat16)


def rounded_to_bf16(values: torch.Tensor) -> torch.Tensor:
    """bf16 or fp32 of any shape → bf16: what is bf16 already keeps every bit."""
    return values if values.dtype == torch.bfloat16 else bf16_from_fp32(values)


def ceil_pow2(values: torch.Tensor) -> torch.Tensor:
    """Positive normal fp32 of any shape → the smallest power of two that is at least as large; an infinity stays one.

    Adding the mantissa mask carries into the exponent exactly when a mantissa bit is set: ceil(log2) without log2.
    """
    return ((values.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def mx_scale(amax: torch.Tensor) -> torch.Tensor:
    """fp32 amax of any shape → 2^ceil(log2(max(amax, 1e-4) / 448)), the scale of DeepSeek-V4's e4m3 tiles."""
    return ceil_pow2(divide(amax.clamp(min=1e-4), E4M3_MAX))


def ue8m0_from_pow2(values: torch.Tensor) -> torch.Tensor:
    """fp32 powers of two from 2^-126 on, of any shape → ue8m0 bytes (uint8); an infinity becomes 255."""
    return (values.view(torch.int32) >> 23).to(torch.uint8)


def fp32_from_ue8m0(codes: torch.Tensor) -> torch.Tensor:
    """ue8m0 bytes (uint8) of any shape → fp32, exact: byte 0 is the subnormal 2^-127."""
    bits = codes.to(torch.int32) << 23
    bits.masked_fill_(codes == 0, 0x00400000)
    bits.masked_fill_(codes == 255, 0x7FC00000)
    return bits.view(torch.float32)


def bytes_of(values: torch.Tensor) -> torch.Tensor:
    """The bytes of a [T, n] tensor of any dtype as uint8 [T, n · itemsize]."""
    return values.contiguous().view(torch.uint8)


def amax_of_tiles(values: torch.Tensor, tile: int) -> torch.Tensor:
    """Largest magnitude of every ``tile`` neighbours: fp32 [T, n] → [T, n / tile]. NaN does not count."""
    magnitudes = values.abs().nan_to_num(nan=0.0, posinf=math.inf)
    return magnitudes.reshape(*values.shape[:-1], values.shape[-1] // tile, tile).amax(-1)


def map_tiles(
    apply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], values: torch.Tensor, of_tiles: torch.Tensor
) -> torch.Tensor:
    """``apply(value, of its tile)`` element by element: [T, tiles · n] with [T, tiles] → [T, tiles · n]."""
    tiles = values.reshape(*of_tiles.shape, values.shape[-1] // of_tiles.shape[-1])
    return apply(tiles, of_tiles[..., None]).reshape(values.shape)


@triton.jit
def encode_e4m3(values):
    """fp32 block → e4m3 bytes (uint8)."""
    return values.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


COMPILED = tl.constexpr(isinstance(encode_e4m3, triton.runtime.JITFunction))
"""Whether kernels are compiled: the interpreter runs no inline assembly."""


@triton.jit
def decode_e4m3(codes):
    """e4m3 bytes (uint8) → fp32, exact."""
    return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def ceil_pow2_bits(values):
    """Positive normal fp32 block → the bits (int32) of ``ceil_pow2``, whose exponent field is the ue8m0 byte."""
    return (values.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000


@triton.jit
def pow2_448th_bits(amax):
    """fp32 amax block → the bits (int32) of ``ceil_pow2(amax / 448)`` where that is 2^-126 or more, else less.

    448 is 1.75 · 2^8, so the power of two is that of amax, 2^8 less, and the next one where its mantissa is above 1.75.
    """
    bits = amax.to(tl.int32, bitcast=True)
    return tl.where(bits == 0x7F800000, bits, ((bits + 0x1FFFFF) & 0x7F800000) - (8 << 23))


@triton.jit
def mx_scale_bits(amax):
    """fp32 amax block → the bits (int32) of ``mx_scale``."""
    return pow2_448th_bits(tl.maximum(amax, 1e-4))


@triton.jit
def near_division(values, divisor, inverse):
    """fp32 values / divisor: the product with ``inverse`` = 1 / divisor, and what the remainder adds to it.

    Correctly rounded for quotients from 2^-20 to 2^10 in magnitude where the divisor is 6, or where values are bf16 and
    the divisor lies between 2^-100 and 2^100 with a mantissa that is not all ones; smaller quotients stay below 2^-19,
    larger ones above 2^9 and infinities infinite. (P. Markstein, IBM J. Res. Dev. 34, 1990.)
    """
    quotient = tl.minimum(tl.maximum(values * inverse, -1024.0), 1024.0)  # finite, so that a remainder is no NaN
    # With the signs this way round a negative zero stays one.
    return tl.fma(tl.fma(quotient, divisor, -values), -inverse, quotient)


@triton.jit
def inverse_pow2(bits):
    """Bits of 2^k, k up to 126 (int32) → fp32 2^-k, 0 for an infinity: x / 2^k is x · 2^-k to the bit."""
    return tl.where(bits == 0x7F800000, 0, 0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def decode_ue8m0(codes):
    """ue8m0 bytes (uint8) → fp32, exact."""
    bits = codes.to(tl.int32) << 23
    bits = tl.where(bits == 0, 0x00400000, tl.where(bits == 0x7F800000, 0x7FC00000, bits))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def tile_amax(values, TILES: tl.constexpr, TILE: tl.constexpr):
    """fp32 [T, TILES · TILE] → the largest magnitude of every tile [T, TILES]. NaN does not count."""
    amax = tl.max(tl.reshape(tl.abs(values), (values.shape[0], TILES, TILE)), axis=2)
    return tl.where(amax == amax, amax, 0.0)  # a maximum passes NaN over, unless there is nothing else


@triton.jit
def per_tile(values, TILE: tl.constexpr):
    """[T, TILES] → [T, TILES · TILE]: every tile's value at each of its elements."""
    spread = tl.broadcast_to(values[:, :, None], (values.shape[0], values.shape[1], TILE))
    return tl.reshape(spread, (values.shape[0], values.shape[1] * TILE))


@triton.jit
def within(mask, columns, WIDTH: tl.constexpr):
    """The mask of a [T, columns] access: token mask, and columns below WIDTH where the block is wider than that."""
    if columns.shape[0] == WIDTH:
        return mask[:, None]
    else:
        return mask[:, None] & (columns < WIDTH)[None, :]
