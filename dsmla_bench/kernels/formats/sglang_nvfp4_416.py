"""sglang_nvfp4_416, 416 bytes a token: SGLang's NVFP4 cache, e2m1 latent below one scale per layer, bf16 RoPE.

    [0, 256)    512 e2m1 NoPE values, the even one in the low nibble
    [256, 288)  32 e4m3 scales, that of tile s (values 16 s .. 16 s + 15) at 256 + s
    [288, 416)  64 bf16 RoPE values

(Layout: sgl-project/sglang PR 35237.) The scale g of the layer is fp32 and lies outside the cache. Nothing in a row is
NaN or infinite: NaN is stored as 0, NoPE is clamped to ±2688 g (6 · 448 · g, the largest value that can be stored),
RoPE to bf16's largest finite value. A tile's scale is sf = e4m3(amax / (6 g)), a value is stored as e2m1(x / (sf · g)),
zero where sf is; a reader gets bf16(e2m1 · sf · g).

The revision ``nearest`` rounds amax / (6 g) to the nearest of all e4m3 codes. The original tries, for every tile, zero
and five neighbours out of a subset of the codes, and keeps the one with the least squared error. It also compares
values with midpoints times sf · g instead of dividing, which can differ where a quotient rounds to a midpoint.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.e2m1 import (
    decode_e2m1,
    e2m1_conversion,
    e2m1_from_fp32,
    fp32_from_e2m1,
    pack_e2m1,
    packed_nibbles,
    unpacked_nibbles,
)
from dsmla_bench.kernels.formats.numerics import (
    amax_of_tiles,
    bf16_from_fp32,
    bytes_of,
    decode_e4m3,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    map_tiles,
    per_tile,
    tile_amax,
)

TILE = 16
LARGEST = 6.0 * 448.0
BF16_MAX = torch.finfo(torch.bfloat16).max
FIELDS = (
    Field("NoPE", "e2m1", 0, 512, order="even value in the low nibble"),
    Field("scales", "e4m3", 256, 32, order="one per 16 NoPE values"),
    Field("RoPE", "bf16", 288, 64),
)


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """kv_c [T, 512], k_pe [T, 64], scale fp32 of one element (None: 1.0) → rows uint8 [T, 416]."""
    layer = torch.ones(1, device=kv_c.device) if scale is None else scale
    values = kv_c.float().nan_to_num(nan=0.0).clamp(-LARGEST * layer, LARGEST * layer)
    amax = amax_of_tiles(values, TILE)
    scales = e4m3_from_fp32(amax / (6.0 * layer).expand_as(amax))
    codes = e2m1_from_fp32(map_tiles(_divide_or_zero, values, fp32_from_e4m3(scales) * layer))
    rope = k_pe.float().nan_to_num(nan=0.0).clamp(-BF16_MAX, BF16_MAX)
    return torch.cat([packed_nibbles(codes), scales, bytes_of(bf16_from_fp32(rope))], dim=-1)


def _divide_or_zero(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """values / scales, +0 where the scale is 0."""
    return torch.where(scales == 0, 0.0, values / scales)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 416] → kv_c bf16 [T, 512], k_pe bf16 [T, 64]: one rounding, of code · sf · g."""
    scales = fp32_from_e4m3(rows[:, 256:288].contiguous())
    kv_c = map_tiles(torch.multiply, fp32_from_e2m1(unpacked_nibbles(rows[:, :256])), scales)
    kv_c = bf16_from_fp32(kv_c if scale is None else kv_c * scale)
    return kv_c, rows[:, 288:].contiguous().view(torch.bfloat16)


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens; see ``formats.base``."""
    values = _finite(kv_c.to(tl.float32), 2688.0 * scale)
    scales = encode_e4m3(tl.div_rn(tile_amax(values, 32, 16), 6.0 * scale))
    divisor = per_tile(decode_e4m3(scales) * scale, 16)
    scaled = tl.where(divisor == 0.0, 0.0, tl.div_rn(values, divisor))
    tl.store(row_ptr[:, None] + tl.arange(0, 256), pack_e2m1(scaled, ARCH >= 100), mask[:, None])
    tl.store(row_ptr[:, None] + 256 + tl.arange(0, 32), scales, mask[:, None])
    rope = _finite(k_pe.to(tl.float32), 3.3895313892515355e38)
    rope_ptr = (row_ptr + 288).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    tl.store(rope_ptr[:, None] + tl.arange(0, 64), rope.to(tl.bfloat16), mask[:, None])


@triton.jit
def _finite(values, largest):
    """NaN to 0, the others clamped to ±largest."""
    values = tl.where(values == values, values, 0.0)
    return tl.maximum(tl.minimum(values, largest), -largest)


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
    packed = tl.load(row_ptr[:, None] + tl.arange(0, 256), mask[:, None], other=0)
    scales = tl.load(row_ptr[:, None] + 256 + tl.arange(0, 32), mask[:, None], other=0)
    rope_ptr = (row_ptr + 288).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    k_pe = tl.load(rope_ptr[:, None] + tl.arange(0, 64), mask[:, None], other=0.0)
    return (decode_e2m1(packed, decode_e4m3(scales), 16) * scale).to(tl.bfloat16), k_pe


FORMATS = (
    CacheFormat(
        name="sglang_nvfp4_416",
        revision="nearest",
        summary="SGLang: e2m1 NoPE in tiles of 16 with e4m3 scales below one per layer, bf16 RoPE",
        fields=lambda geometry: FIELDS,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e2m1_conversion,
        geometry=Geometry(512, 64),
        external_scale=True,
        lab=True,
    ),
)
