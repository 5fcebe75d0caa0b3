"""b12x_nvfp4_432, 432 bytes a token: the b12x kernels' NVFP4 cache for sm_120, e2m1 latent and bf16 RoPE.

    [0, 256)    512 e2m1 NoPE values, the even one in the low nibble
    [256, 288)  32 e4m3 scales, that of tile s (values 16 s .. 16 s + 15) at 256 + s
    [288, 304)  16 zero bytes, so that RoPE is aligned
    [304, 432)  64 bf16 RoPE values, copied bit for bit

(Layout: local-inference-lab/vllm PR 82, where it is called ``nvfp4_ds_mla`` like vLLM's own 352-byte format; scales in
the order of their tiles, pad bytes written as zero.) The outer scale is 1. A tile's scale is sf = e4m3(amax / 6), and a
value is stored as e2m1(x · (1 / sf)). There is no floor: where amax / 6 rounds to zero, for amax up to 6 · 2^-10, the
tile is stored as zero bytes. A reader gets e2m1 · sf, which bf16 holds exactly.

The revision ``ieee`` divides and takes reciprocals correctly rounded. The original takes both from the hardware's
approximate reciprocal, which may be an fp32 step off, so a value at a tie, or a scale at one, may get the neighbouring
code there. NaN does not count in amax and is stored as +6; an infinity makes sf 448 and is stored as ±6.
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
    divide,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    map_tiles,
    per_tile,
    rounded_to_bf16,
    tile_amax,
)

TILE = 16
FIELDS = (
    Field("NoPE", "e2m1", 0, 512, order="even value in the low nibble"),
    Field("scales", "e4m3", 256, 32, order="one per 16 NoPE values"),
    Field("pad", "uint8", 288, 16, order="zero"),
    Field("RoPE", "bf16", 304, 64),
)


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """kv_c [T, 512], k_pe [T, 64] → rows uint8 [T, 432]. ``scale`` is not used."""
    values = kv_c.float()
    scales = e4m3_from_fp32(divide(amax_of_tiles(values, TILE), 6.0))
    codes = e2m1_from_fp32(map_tiles(_times_reciprocal, values, fp32_from_e4m3(scales)))
    pad = torch.zeros(len(kv_c), 16, dtype=torch.uint8, device=kv_c.device)
    return torch.cat([packed_nibbles(codes), scales, pad, bytes_of(rounded_to_bf16(k_pe))], dim=-1)


def _times_reciprocal(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """values · (1 / scales), +0 where the scale is 0."""
    return torch.where(scales == 0, 0.0, values * scales.reciprocal())


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 432] → kv_c bf16 [T, 512], k_pe bf16 [T, 64]; no value is rounded."""
    scales = fp32_from_e4m3(rows[:, 256:288].contiguous())
    kv_c = map_tiles(torch.multiply, fp32_from_e2m1(unpacked_nibbles(rows[:, :256])), scales)
    return bf16_from_fp32(kv_c), rows[:, 304:].contiguous().view(torch.bfloat16)


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens; see ``formats.base``."""
    values = kv_c.to(tl.float32)
    scales = encode_e4m3(tl.div_rn(tile_amax(values, 32, 16), 6.0))
    sf = decode_e4m3(scales)
    scaled = tl.where(per_tile(sf, 16) == 0.0, 0.0, values * per_tile(tl.div_rn(1.0, sf), 16))
    tl.store(row_ptr[:, None] + tl.arange(0, 256), pack_e2m1(scaled, ARCH >= 100), mask[:, None])
    tl.store(row_ptr[:, None] + 256 + tl.arange(0, 32), scales, mask[:, None])
    pad = tl.zeros((kv_c.shape[0], 16), tl.uint8)
    tl.store(row_ptr[:, None] + 288 + tl.arange(0, 16), pad, mask[:, None])
    rope_ptr = (row_ptr + 304).to(tl.pointer_type(tl.bfloat16), bitcast=True)
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
    packed = tl.load(row_ptr[:, None] + tl.arange(0, 256), mask[:, None], other=0)
    scales = tl.load(row_ptr[:, None] + 256 + tl.arange(0, 32), mask[:, None], other=0)
    rope_ptr = (row_ptr + 304).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    k_pe = tl.load(rope_ptr[:, None] + tl.arange(0, 64), mask[:, None], other=0.0)
    return decode_e2m1(packed, decode_e4m3(scales), 16).to(tl.bfloat16), k_pe


FORMATS = (
    CacheFormat(
        name="b12x_nvfp4_432",
        revision="ieee",
        summary="b12x: e2m1 NoPE in tiles of 16 with e4m3 scales and no floor, bf16 RoPE",
        fields=lambda geometry: FIELDS,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e2m1_conversion,
        geometry=Geometry(512, 64),
        lab=True,
    ),
)
