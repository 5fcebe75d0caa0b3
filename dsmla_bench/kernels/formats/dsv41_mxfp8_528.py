"""dsv41_mxfp8_528, 528 bytes a token: DeepSeek-V4.1's MXFP8 cache, e4m3 in tiles of 32 with ue8m0 scales in the row.

    [0, 512)    512 e4m3 values: 448 NoPE, then 64 RoPE (after rotation)
    [512, 528)  16 ue8m0 scales, tile t holds values 32 t .. 32 t + 31: 14 of NoPE, 2 of RoPE

(Layout: vLLM 0.33, and FlashMLA from its release of 2026-09-30 on. Before, a page held all data rows and then all scale
rows: caches of the two layouts have the same size, and each other's readers misread them silently.) One vector of 512
is quantized as a whole, RoPE included; kv_c is its first 448 values and k_pe its last 64, so the geometry is 448 + 64.

Scales are those of ``dsv4_584`` over tiles of 32: e = ceil(log2(max(amax, 1e-4) / 448)), stored as e + 127. (Production
multiplies by 1 / 448; e is the same for every bf16 amax.) NaN and infinities are treated as there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import (
    amax_of_tiles,
    bf16_from_fp32,
    decode_e4m3,
    decode_ue8m0,
    e4m3_conversion,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    fp32_from_ue8m0,
    inverse_pow2,
    map_tiles,
    mx_scale,
    mx_scale_bits,
    per_tile,
    tile_amax,
    ue8m0_from_pow2,
    within,
)

TILE = 32
FIELDS = (
    Field("NoPE", "e4m3", 0, 448),
    Field("RoPE", "e4m3", 448, 64),
    Field("scales", "ue8m0", 512, 16, order="one per 32 values, RoPE's last"),
)


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """kv_c [T, 448], k_pe [T, 64] → rows uint8 [T, 528]. ``scale`` is not used."""
    values = torch.cat([kv_c, k_pe], dim=-1).float()
    scales = mx_scale(amax_of_tiles(values, TILE))
    codes = e4m3_from_fp32(map_tiles(torch.divide, values, scales))
    return torch.cat([codes, ue8m0_from_pow2(scales)], dim=-1)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(448, 64), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 528] → kv_c bf16 [T, 448], k_pe bf16 [T, 64]."""
    scales = fp32_from_ue8m0(rows[:, 512:])
    values = bf16_from_fp32(map_tiles(torch.multiply, fp32_from_e4m3(rows[:, :512].contiguous()), scales))
    return values[:, :448], values[:, 448:]


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens; see ``formats.base``."""
    _store(kv_c.to(tl.float32), row_ptr, row_ptr + 512, mask, 448, 14)
    _store(k_pe.to(tl.float32), row_ptr + 448, row_ptr + 526, mask, 64, 2)


@triton.jit
def _store(values, values_ptr, scales_ptr, mask, WIDTH: tl.constexpr, TILES: tl.constexpr):
    """The values below WIDTH and the scales of the first TILES tiles of 32; beyond are zeros."""
    bits = mx_scale_bits(tile_amax(values, values.shape[1] // 32, 32))
    column, tile = tl.arange(0, values.shape[1]), tl.arange(0, values.shape[1] // 32)
    codes = encode_e4m3(values * per_tile(inverse_pow2(bits), 32))
    tl.store(values_ptr[:, None] + column, codes, within(mask, column, WIDTH))
    tl.store(scales_ptr[:, None] + tile, (bits >> 23).to(tl.uint8), within(mask, tile, TILES))


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
    return _load(row_ptr, row_ptr + 512, mask, 448, 512), _load(row_ptr + 448, row_ptr + 526, mask, 64, 64)


@triton.jit
def _load(values_ptr, scales_ptr, mask, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column, tile = tl.arange(0, BLOCK), tl.arange(0, BLOCK // 32)
    codes = tl.load(values_ptr[:, None] + column, within(mask, column, WIDTH), other=0)
    scales = tl.load(scales_ptr[:, None] + tile, within(mask, tile, WIDTH // 32), other=0)
    return (decode_e4m3(codes) * per_tile(decode_ue8m0(scales), 32)).to(tl.bfloat16)


FORMATS = (
    CacheFormat(
        name="dsv41_mxfp8_528",
        revision="interleaved",
        summary="DeepSeek-V4.1: e4m3 NoPE and RoPE in tiles of 32 with ue8m0 scales",
        fields=lambda geometry: FIELDS,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e4m3_conversion,
        geometry=Geometry(448, 64),
        lab=True,
    ),
)
