"""Copies of two write kernels, and of each a copy that got worse in one way and still writes the same bytes.

A format of the same name stands for the same kernel before and after a change.
"""

import dataclasses

import triton
import triton.language as tl
from toy_format import TOY, encode

from dsmla_bench.kernels.formats.e2m1 import pack_e2m1
from dsmla_bench.kernels.formats.numerics import decode_e4m3, encode_e4m3, per_tile, tile_amax, within
from dsmla_bench.kernels.formats.nvfp4_ds_mla import FORMATS, scale_offsets


@triton.jit
def encode_spilling(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Carries eight floats for every value through a loop: more than there are registers."""
    held = kv_c.to(tl.float32)[:, :, None] + tl.arange(0, 8)[None, None, :]
    for _ in range(tl.sum(mask.to(tl.int32))):
        held = held * held + 0.5
    kv_c = (kv_c.to(tl.float32) + tl.sum(tl.minimum(held, 0.0), axis=2) * 0.0).to(tl.bfloat16)
    encode(kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK, ROPE_DIM, ARCH)


@triton.jit
def encode_by_16_bits(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Stores even and odd values apart, so that no two neighbours go by one instruction."""
    values_ptr = row_ptr.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    nope = tl.arange(0, kv_c.shape[1])
    rope = tl.arange(0, k_pe.shape[1])
    tl.store(values_ptr[:, None] + rope, k_pe.to(tl.bfloat16), within(mask, rope, ROPE_DIM))
    for odd in tl.static_range(2):
        half = within(mask, nope, KV_LORA_RANK) & (nope % 2 == odd)[None, :]
        tl.store(values_ptr[:, None] + ROPE_DIM + nope, kv_c.to(tl.bfloat16), half)


@triton.jit
def encode_nvfp4(kv_c, k_pe, row_ptr, mask, NATIVE: tl.constexpr):
    values = kv_c.to(tl.float32)
    scales = encode_e4m3(tl.maximum(tl.div_rn(tile_amax(values, 32, 16), 6.0), 0.001953125))
    packed = pack_e2m1(values * per_tile(tl.div_rn(1.0, decode_e4m3(scales)), 16), NATIVE)
    tl.store(row_ptr[:, None] + tl.arange(0, 256), packed, mask[:, None])
    tl.store(row_ptr[:, None] + 256 + tl.arange(0, 64), encode_e4m3(k_pe.to(tl.float32)), mask[:, None])
    tl.store(row_ptr[:, None] + 320 + scale_offsets(), scales, mask[:, None])


@triton.jit
def encode_native(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    encode_nvfp4(kv_c, k_pe, row_ptr, mask, ARCH >= 100)


@triton.jit
def encode_without_native(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    encode_nvfp4(kv_c, k_pe, row_ptr, mask, False)


NVFP4 = dataclasses.replace(FORMATS[0], name="toy_nvfp4", encode=encode_native)
BEFORE = (TOY, NVFP4)
SPILLING = dataclasses.replace(TOY, encode=encode_spilling)
BY_16_BITS = dataclasses.replace(TOY, encode=encode_by_16_bits)
WITHOUT_NATIVE = dataclasses.replace(NVFP4, encode=encode_without_native)
AFTER = (SPILLING, WITHOUT_NATIVE)
