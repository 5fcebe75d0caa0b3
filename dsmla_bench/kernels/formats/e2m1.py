"""e2m1, the four-bit float of the formats built on NVFP4, in torch (the definition) and in Triton (the same codes).

Codes 0 to 7 are the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6; bit 3 is the sign. Two codes make a byte, the even value
in the low nibble. The rule of a conversion is in ``numerics``.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats.numerics import per_tile

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def e2m1_conversion(arch: Architecture) -> str | None:
    """``CacheFormat.conversion`` of formats with e2m1 values and e4m3 scales."""
    if not arch.has_e4m3:
        return None
    return "native" if arch.has_e2m1 else "emulated"


@functools.cache
def _e2m1_bounds(device: torch.device) -> torch.Tensor:
    """Beyond which magnitudes the next code begins, fp32 [7]: the midpoints, a step lower where a tie goes up."""
    midpoints = torch.tensor(E2M1_MIDPOINTS)
    midpoints[1::2] = midpoints[1::2].nextafter(torch.zeros(()))
    return midpoints.to(device)


@functools.cache
def _e2m1_values(device: torch.device) -> torch.Tensor:
    """The value of every code, fp32 [16]."""
    return torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], device=device)


def e2m1_from_fp32(values: torch.Tensor) -> torch.Tensor:
    """fp32 of any shape → e2m1 codes 0..15 (uint8): nearest, ties to even code, saturating; NaN is 7.

    A magnitude's code is the number of midpoints below it. One on a midpoint takes the even code, which is the upper
    one at every second midpoint.
    """
    codes = torch.bucketize(values.abs(), _e2m1_bounds(values.device), out_int32=True).to(torch.uint8)
    codes |= values.signbit() * 8
    return codes.masked_fill_(values.isnan(), 7)


def fp32_from_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """e2m1 codes 0..15 (uint8) of any shape → fp32, exact."""
    return _e2m1_values(codes.device)[codes.int()]


def packed_nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 (uint8) [T, 2 n] → bytes [T, n], the even code in the low nibble."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpacked_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of ``packed_nibbles``."""
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)


@triton.jit
def round_to_e2m1(values):
    """fp32 block → e2m1 codes 0..15 (int32), for targets without the conversion instruction.

    With 2^k the power of two below a magnitude, 1 at least, adding 2^(k + 22) rounds it to a multiple of 2^(k - 1),
    half to even, which the sum's low bits count. Those are e2m1's steps: the code is that count and 2 k. The exponent
    of the sum, 149 + k, doubled adds the 2 k; 3 · 2^k more, six steps, make what is left of it a multiple of 8.

    A NaN must be positive, as every arithmetic operation leaves it.
    """
    magnitude = tl.minimum(tl.abs(values), 6.0)
    power = tl.maximum(magnitude, 1.0).to(tl.int32, bitcast=True) & 0x7F800000
    total = tl.fma(power.to(tl.float32, bitcast=True), 4194304.0 + 3.0, magnitude).to(tl.uint32, bitcast=True)
    code = total + (total >> 22)
    sign = values.to(tl.uint32, bitcast=True) >> 28
    return (((code ^ sign) & 7) ^ sign).to(tl.int32)


@triton.jit
def pack_e2m1(values, NATIVE: tl.constexpr):
    """fp32 [T, 2 n] → bytes [T, n] (uint8), the even value in the low nibble."""
    low, high = tl.split(tl.reshape(values, (values.shape[0], values.shape[1] // 2, 2)))
    if NATIVE:
        packed = tl.inline_asm_elementwise(
            "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $1, $2; cvt.u32.u8 $0, pair; }",
            "=r,f,f",
            [high, low],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        packed = round_to_e2m1(low) | (round_to_e2m1(high) << 4)
    return packed.to(tl.uint8)


@triton.jit
def e2m1_in_half(codes):
    """e2m1 codes 0..15 (int32) → their values · 2^-14, fp32.

    The three low bits are an exponent and a mantissa bit; placed at the top of a half's fields they read 2^-14 too
    small, e2m1's subnormal 0.5 included.
    """
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def decode_e2m1(packed, scales, TILE: tl.constexpr):
    """Bytes [T, n] (uint8) and fp32 scales of tiles [T, 2 n / TILE], up to 2^113 → value · scale, fp32 [T, 2 n]."""
    codes = packed.to(tl.int32)
    values = tl.join(e2m1_in_half(codes & 0xF), e2m1_in_half(codes >> 4))
    return tl.reshape(values, (packed.shape[0], 2 * packed.shape[1])) * per_tile(scales * 16384.0, TILE)
