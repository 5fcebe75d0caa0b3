"""What a third party writes to add a format: one file. bf16 as it comes, RoPE first, from sm_90 on.

Beside the right one there are two that no test suite should let pass: ``toy_wrong``, whose encode forgets the order,
and ``toy_broken``, whose encode does not compile.
"""

import dataclasses

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field
from dsmla_bench.kernels.formats.numerics import bytes_of, within


def fields(geometry):
    rope = Field("RoPE", "bf16", 0, geometry.rope_dim)
    return (rope, Field("NoPE", "bf16", rope.end, geometry.kv_lora_rank))


def quantize(kv_c, k_pe, scale=None):
    return bytes_of(torch.cat([k_pe, kv_c], dim=-1).to(torch.bfloat16))


def dequantize(rows, geometry, scale=None):
    values = rows.contiguous().view(torch.bfloat16)
    return values[:, geometry.rope_dim :], values[:, : geometry.rope_dim]


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    values_ptr = row_ptr.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    nope = tl.arange(0, kv_c.shape[1])
    rope = tl.arange(0, k_pe.shape[1])
    tl.store(values_ptr[:, None] + rope, k_pe.to(tl.bfloat16), within(mask, rope, ROPE_DIM))
    tl.store(values_ptr[:, None] + ROPE_DIM + nope, kv_c.to(tl.bfloat16), within(mask, nope, KV_LORA_RANK))


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
    values_ptr = row_ptr.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    nope = tl.arange(0, NOPE_BLOCK)
    rope = tl.arange(0, ROPE_BLOCK)
    kv_c = tl.load(values_ptr[:, None] + ROPE_DIM + nope, within(mask, nope, KV_LORA_RANK), other=0.0)
    k_pe = tl.load(values_ptr[:, None] + rope, within(mask, rope, ROPE_DIM), other=0.0)
    return kv_c, k_pe


@triton.jit
def encode_in_wrong_order(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    values_ptr = row_ptr.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    nope = tl.arange(0, kv_c.shape[1])
    rope = tl.arange(0, k_pe.shape[1])
    tl.store(values_ptr[:, None] + nope, kv_c.to(tl.bfloat16), within(mask, nope, KV_LORA_RANK))
    tl.store(values_ptr[:, None] + KV_LORA_RANK + rope, k_pe.to(tl.bfloat16), within(mask, rope, ROPE_DIM))


@triton.jit
def encode_that_does_not_compile(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    tl.store(row_ptr[:, None] + tl.arange(0, 100), kv_c, mask[:, None])  # 100 is no power of two


TOY = CacheFormat(
    name="toy",
    revision="v1",
    summary="bf16, RoPE first",
    fields=fields,
    quantize=quantize,
    dequantize=dequantize,
    encode=encode,
    decode=decode,
    conversion=lambda arch: "none" if arch.number >= 90 else None,
)
FORMATS = (TOY,)
BAD_FORMATS = (
    dataclasses.replace(TOY, name="toy_wrong", encode=encode_in_wrong_order),
    dataclasses.replace(TOY, name="toy_broken", encode=encode_that_does_not_compile),
)
