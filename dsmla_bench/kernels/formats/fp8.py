"""fp8, 576 bytes a token: e4m3 with one scale per layer, kept outside the cache.

A row is e4m3(kv_c / scale) then e4m3(k_pe / scale), with a true division and the same scale for both; vLLM calls it
``fp8`` (``fp8_e4m3``) and stores the scale as ``k_scale``. Reading multiplies by the scale in fp32 and rounds once to
bf16. A layer's default scale is 1.0. Any geometry.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import (
    bf16_from_fp32,
    decode_e4m3,
    e4m3_conversion,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    near_division,
    within,
)


def fields(geometry: Geometry) -> tuple[Field, ...]:
    """NoPE, then RoPE."""
    nope = Field("NoPE", "e4m3", 0, geometry.kv_lora_rank)
    return (nope, Field("RoPE", "e4m3", nope.end, geometry.rope_dim))


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """kv_c [T, n], k_pe [T, r], scale fp32 of one element (None: 1.0) → rows uint8 [T, n + r]."""
    values = torch.cat([kv_c, k_pe], dim=-1).float()
    return e4m3_from_fp32(values if scale is None else values / scale.expand_as(values))


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, n + r] → kv_c bf16 [T, n], k_pe bf16 [T, r]: one rounding, of code · scale."""
    values = fp32_from_e4m3(rows)
    values = bf16_from_fp32(values if scale is None else values * scale)
    return values[:, : geometry.kv_lora_rank], values[:, geometry.kv_lora_rank :]


@triton.jit
def divided_codes(values, scale):
    """bf16 or fp32 block → e4m3(values / scale), bytes (uint8).

    bf16 values over an ordinary scale are divided in a few operations; ``numerics.near_division`` says which scales
    are ordinary.
    """
    wide = values.to(tl.float32)
    scale = tl.cast(scale, tl.float32)
    bits = scale.to(tl.int32, bitcast=True)
    if values.dtype == tl.bfloat16:
        if (scale > 7.888609052210118e-31) & (scale < 1.2676506002282294e30) & ((bits & 0x7FFFFF) != 0x7FFFFF):
            quotients = near_division(wide, scale, tl.div_rn(1.0, scale))
        else:
            quotients = tl.div_rn(wide, scale)
    else:
        quotients = tl.div_rn(wide, scale)
    return encode_e4m3(quotients)


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens; see ``formats.base``."""
    nope = tl.arange(0, kv_c.shape[1])
    tl.store(row_ptr[:, None] + nope, divided_codes(kv_c, scale), within(mask, nope, KV_LORA_RANK))
    if ROPE_DIM > 0:
        rope = tl.arange(0, k_pe.shape[1])
        tl.store(row_ptr[:, None] + KV_LORA_RANK + rope, divided_codes(k_pe, scale), within(mask, rope, ROPE_DIM))


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
    nope = tl.arange(0, NOPE_BLOCK)
    rope = tl.arange(0, ROPE_BLOCK)
    kv_c = tl.load(row_ptr[:, None] + nope, within(mask, nope, KV_LORA_RANK), other=0)
    k_pe = tl.load(row_ptr[:, None] + KV_LORA_RANK + rope, within(mask, rope, ROPE_DIM), other=0)
    return (decode_e4m3(kv_c) * scale).to(tl.bfloat16), (decode_e4m3(k_pe) * scale).to(tl.bfloat16)


FORMATS = (
    CacheFormat(
        name="fp8",
        revision="per_tensor",
        summary="e4m3 with one scale per layer outside the cache",
        fields=fields,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e4m3_conversion,
        external_scale=True,
    ),
)
