"""my_format: e4m3 with one fp32 scale per token, in front of its values; any geometry.

A row is the scale max(amax / 448, 2^-126), amax over NoPE and RoPE, then e4m3(kv_c / scale), then e4m3(k_pe / scale).
``dsmla_bench.kernels.formats.base`` says what is asked of the functions.
"""
# ruff: noqa: D103, N803 - the functions are described there; constexpr arguments are upper case by Triton's custom

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats import numerics as num


def fields(geometry):
    nope = Field("NoPE", "e4m3", 4, geometry.kv_lora_rank)
    return (Field("scale", "fp32", 0, 1), nope, Field("RoPE", "e4m3", nope.end, geometry.rope_dim))


def quantize(kv_c, k_pe, scale=None):
    values = torch.cat([kv_c, k_pe], dim=-1).float()
    scales = num.divide(num.amax_of_tiles(values, values.shape[1]), 448.0).clamp(min=2.0**-126)
    return torch.cat([num.bytes_of(scales), num.e4m3_from_fp32(values / scales)], dim=-1)


def dequantize(rows, geometry=Geometry(), scale=None):
    scales = rows[:, :4].contiguous().view(torch.float32)
    values = num.bf16_from_fp32(num.fp32_from_e4m3(rows[:, 4:].contiguous()) * scales)
    return values[:, : geometry.kv_lora_rank], values[:, geometry.kv_lora_rank :]


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    nope, rope = tl.arange(0, kv_c.shape[1]), tl.arange(0, k_pe.shape[1])
    kv_c, k_pe = kv_c.to(tl.float32), k_pe.to(tl.float32)
    amax = tl.maximum(num.tile_amax(kv_c, 1, kv_c.shape[1]), num.tile_amax(k_pe, 1, k_pe.shape[1]))
    scales = tl.maximum(tl.div_rn(amax, 448.0), 1.1754943508222875e-38)
    tl.store(row_ptr.to(tl.pointer_type(tl.float32), bitcast=True)[:, None], scales, mask[:, None])
    kv_c, k_pe = num.encode_e4m3(tl.div_rn(kv_c, scales)), num.encode_e4m3(tl.div_rn(k_pe, scales))
    tl.store(row_ptr[:, None] + 4 + nope, kv_c, num.within(mask, nope, KV_LORA_RANK))
    tl.store(row_ptr[:, None] + 4 + KV_LORA_RANK + rope, k_pe, num.within(mask, rope, ROPE_DIM))


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
    nope, rope = tl.arange(0, NOPE_BLOCK), tl.arange(0, ROPE_BLOCK)
    scales = tl.load(row_ptr.to(tl.pointer_type(tl.float32), bitcast=True), mask, other=0.0)[:, None]
    kv_c = tl.load(row_ptr[:, None] + 4 + nope, num.within(mask, nope, KV_LORA_RANK), other=0)
    k_pe = tl.load(row_ptr[:, None] + 4 + KV_LORA_RANK + rope, num.within(mask, rope, ROPE_DIM), other=0)
    return (num.decode_e4m3(kv_c) * scales).to(tl.bfloat16), (num.decode_e4m3(k_pe) * scales).to(tl.bfloat16)


FORMATS = (
    CacheFormat(
        name="my_format",
        revision="v1",
        summary="e4m3 with one fp32 scale per token",
        fields=fields,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=lambda arch: "native" if arch.has_e4m3 else None,
    ),
)
