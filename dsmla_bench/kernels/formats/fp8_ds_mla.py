"""fp8_ds_mla, 656 bytes a token: DeepSeek's own layout, e4m3 latent in tiles of 128 with fp32 scales, RoPE in bf16.

    [0, 512)    512 e4m3 NoPE values, tile t holds dims 128 t .. 128 t + 127
    [512, 528)  4 fp32 scales, little endian, one per tile
    [528, 656)  64 bf16 RoPE values, copied bit for bit

(Layout: deepseek-ai/FlashMLA README; unchanged in vLLM since 0.11.) A value is stored as e4m3(x / scale), saturating;
a reader gets bf16(e4m3 · scale), rounded once. The revisions differ in the scale of a tile, from its largest magnitude:

    pow2     2^ceil(log2(max(amax / 448, 1e-4)))   vLLM from 0.31 and FlashMLA's reference; every reader agrees on it
    amax448  max(amax / 448, FLT_MIN)              vLLM up to 0.30; readers that truncate scales to a power of two err

NaN does not count in amax and becomes e4m3's NaN; an infinity makes the scale infinite, as in production. A tile of
zeros gets the scale 2^-13 (pow2) or FLT_MIN (amax448).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import (
    amax_of_tiles,
    bf16_from_fp32,
    bytes_of,
    ceil_pow2,
    decode_e4m3,
    divide,
    e4m3_conversion,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    inverse_pow2,
    map_tiles,
    per_tile,
    pow2_448th_bits,
    rounded_to_bf16,
    tile_amax,
)

TILE = 128
FLT_MIN = 2.0**-126
POW2_FLOOR = 1e-4

FIELDS = (
    Field("NoPE", "e4m3", 0, 512),
    Field("scales", "fp32", 512, 4, order="one per 128 NoPE values"),
    Field("RoPE", "bf16", 528, 64),
)


def pow2_scale(amax: torch.Tensor) -> torch.Tensor:
    """fp32 amax → the smallest power of two that is at least max(amax / 448, 1e-4); an infinity stays one."""
    return ceil_pow2(divide(amax, 448.0).clamp(min=POW2_FLOOR))


def amax448_scale(amax: torch.Tensor) -> torch.Tensor:
    """fp32 amax → max(amax / 448, FLT_MIN)."""
    return divide(amax, 448.0).clamp(min=FLT_MIN)


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None, *, pow2: bool) -> torch.Tensor:
    """kv_c [T, 512], k_pe [T, 64] → rows uint8 [T, 656]. ``scale`` is not used."""
    values = kv_c.float()
    amax = amax_of_tiles(values, TILE)
    scales = pow2_scale(amax) if pow2 else amax448_scale(amax)
    codes = e4m3_from_fp32(map_tiles(torch.divide, values, scales))
    return torch.cat([codes, bytes_of(scales), bytes_of(rounded_to_bf16(k_pe))], dim=-1)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 656] → kv_c bf16 [T, 512], k_pe bf16 [T, 64]."""
    scales = rows[:, 512:528].contiguous().view(torch.float32)
    kv_c = map_tiles(torch.multiply, fp32_from_e4m3(rows[:, :512].contiguous()), scales)
    return bf16_from_fp32(kv_c), rows[:, 528:].contiguous().view(torch.bfloat16)


@triton.jit
def encode_pow2(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens, revision pow2; see ``formats.base``."""
    values = kv_c.to(tl.float32)
    bits = tl.maximum(pow2_448th_bits(tile_amax(values, 4, 128)), 0x39000000)  # 2^-13, the power of two above 1e-4
    codes = encode_e4m3(values * per_tile(inverse_pow2(bits), 128))
    _store(codes, bits.to(tl.float32, bitcast=True), k_pe, row_ptr, mask)


@triton.jit
def encode_amax448(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens, revision amax448; see ``formats.base``."""
    values = kv_c.to(tl.float32)
    scales = tl.maximum(tl.div_rn(tile_amax(values, 4, 128), 448.0), 1.1754943508222875e-38)
    codes = encode_e4m3(tl.div_rn(values, per_tile(scales, 128)))
    _store(codes, scales, k_pe, row_ptr, mask)


@triton.jit
def _store(codes, scales, k_pe, row_ptr, mask):
    tl.store(row_ptr[:, None] + tl.arange(0, 512), codes, mask[:, None])
    scale_ptr = (row_ptr + 512).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(scale_ptr[:, None] + tl.arange(0, 4), scales, mask[:, None])
    rope_ptr = (row_ptr + 528).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    tl.store(rope_ptr[:, None] + tl.arange(0, 64), k_pe.to(tl.bfloat16), mask[:, None])


@triton.jit
def decode(
    row_ptr,
    suffix_ptr,
    mask,
    scale,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
):
    """Load a block of tokens; see ``formats.base``."""
    codes = tl.load(row_ptr[:, None] + tl.arange(0, 512), mask[:, None], other=0)
    scale_ptr = (row_ptr + 512).to(tl.pointer_type(tl.float32), bitcast=True)
    scales = tl.load(scale_ptr[:, None] + tl.arange(0, 4), mask[:, None], other=0.0)
    rope_ptr = (row_ptr + 528).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    k_pe = tl.load(rope_ptr[:, None] + tl.arange(0, 64), mask[:, None], other=0.0)
    return (decode_e4m3(codes) * per_tile(scales, 128)).to(tl.bfloat16), k_pe


def _revision(name: str, summary: str, encode: object, *, pow2: bool) -> CacheFormat:
    return CacheFormat(
        name="fp8_ds_mla",
        revision=name,
        summary=summary,
        fields=lambda geometry: FIELDS,
        quantize=functools.partial(quantize, pow2=pow2),
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e4m3_conversion,
        default=pow2,
        geometry=Geometry(512, 64),
    )


FORMATS = (
    _revision("pow2", "e4m3 NoPE in tiles of 128 with power-of-two fp32 scales, bf16 RoPE", encode_pow2, pow2=True),
    _revision("amax448", "as pow2, with the scale amax / 448 that vLLM wrote up to 0.30", encode_amax448, pow2=False),
)
