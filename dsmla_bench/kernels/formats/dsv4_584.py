"""dsv4_584, 584 bytes a token: DeepSeek-V4's cache, e4m3 in tiles of 64 with ue8m0 scales at the end of the page.

    page of n tokens: [0, 576 n)      n data rows of 448 e4m3 NoPE values, then 64 bf16 RoPE values, copied bit for bit
                      [576 n, 584 n)  n scale rows of 7 ue8m0 scales, that of tile t at byte t, then a zero
                      padding to a multiple of 576 bytes: a page of 64 has 37 440

(Layout: vLLM 0.33, which calls it ``fp8_ds_mla`` on DeepSeek-V4 models, as FlashMLA does. The padding lets one TMA
descriptor step over pages.) Geometry 448 + 64. With e = ceil(log2(max(amax, 1e-4) / 448)), a tile's scale is the byte
e + 127, a value is stored as e4m3(x · 2^-e), and a reader gets bf16(e4m3 · 2^(byte - 127)). The floor is on amax, not
on amax / 448 as in ``fp8_ds_mla``, so that e is -22 at least and a tile of zeros has the byte 105.

NaN does not count in amax and becomes e4m3's NaN. An infinity gives its tile the byte 255, which reads as NaN.
Production clamps to ±448 before it converts; no quotient lies beyond, so that changes nothing. Its CUDA writer rounds
fp32 values to bf16 first; here they are quantized as they come.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import (
    amax_of_tiles,
    bf16_from_fp32,
    bytes_of,
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
    rounded_to_bf16,
    tile_amax,
    ue8m0_from_pow2,
    within,
)

TILE = 64
FIELDS = (
    Field("NoPE", "e4m3", 0, 448),
    Field("RoPE", "bf16", 448, 64),
    Field("scales", "ue8m0", 576, 7, order="one per 64 NoPE values, at the page's end"),
    Field("pad", "uint8", 583, 1, order="zero"),
)


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """kv_c [T, 448], k_pe [T, 64] → rows uint8 [T, 584], data row and scale row. ``scale`` is not used."""
    values = kv_c.float()
    scales = mx_scale(amax_of_tiles(values, TILE))
    codes = e4m3_from_fp32(map_tiles(torch.divide, values, scales))
    stored = torch.nn.functional.pad(ue8m0_from_pow2(scales), (0, 1))
    return torch.cat([codes, bytes_of(rounded_to_bf16(k_pe)), stored], dim=-1)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(448, 64), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 584] → kv_c bf16 [T, 448], k_pe bf16 [T, 64]."""
    scales = fp32_from_ue8m0(rows[:, 576:583])
    kv_c = map_tiles(torch.multiply, fp32_from_e4m3(rows[:, :448].contiguous()), scales)
    return bf16_from_fp32(kv_c), rows[:, 448:576].contiguous().view(torch.bfloat16)


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens; see ``formats.base``. kv_c's 512 columns make an eighth tile, of zeros."""
    values = kv_c.to(tl.float32)
    bits = mx_scale_bits(tile_amax(values, 8, 64))
    nope = tl.arange(0, 512)
    codes = encode_e4m3(values * per_tile(inverse_pow2(bits), 64))
    tl.store(row_ptr[:, None] + nope, codes, within(mask, nope, 448))
    rope_ptr = (row_ptr + 448).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    tl.store(rope_ptr[:, None] + tl.arange(0, 64), k_pe.to(tl.bfloat16), mask[:, None])
    tile = tl.arange(0, 8)
    stored = tl.where(tile[None, :] < 7, bits >> 23, 0).to(tl.uint8)
    tl.store(suffix_ptr[:, None] + tile, stored, mask[:, None])


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
    nope = tl.arange(0, 512)
    codes = tl.load(row_ptr[:, None] + nope, within(mask, nope, 448), other=0)
    scales = tl.load(suffix_ptr[:, None] + tl.arange(0, 8), mask[:, None], other=0)
    rope_ptr = (row_ptr + 448).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    k_pe = tl.load(rope_ptr[:, None] + tl.arange(0, 64), mask[:, None], other=0.0)
    return (decode_e4m3(codes) * per_tile(decode_ue8m0(scales), 64)).to(tl.bfloat16), k_pe


FORMATS = (
    CacheFormat(
        name="dsv4_584",
        revision="pow2",
        summary="DeepSeek-V4: e4m3 NoPE in tiles of 64, ue8m0 scales at the page's end, bf16 RoPE",
        fields=lambda geometry: FIELDS,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e4m3_conversion,
        geometry=Geometry(448, 64),
        suffix_bytes=8,
        page_alignment=576,
        lab=True,
    ),
)
