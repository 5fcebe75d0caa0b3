"""bf16, 1152 bytes a token: the cache without quantization, and the baseline of every comparison.

A row is kv_c then k_pe, as they came: bf16 inputs keep every bit, NaN payloads included; fp32 inputs are rounded to
nearest even. vLLM calls it ``auto`` or ``bfloat16``. Any geometry.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import bytes_of, rounded_to_bf16, within


def fields(geometry: Geometry) -> tuple[Field, ...]:
    """NoPE, then RoPE."""
    nope = Field("NoPE", "bf16", 0, geometry.kv_lora_rank)
    return (nope, Field("RoPE", "bf16", nope.end, geometry.rope_dim))


def quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """kv_c [T, n], k_pe [T, r] → rows uint8 [T, 2 (n + r)]."""
    return torch.cat([bytes_of(rounded_to_bf16(kv_c)), bytes_of(rounded_to_bf16(k_pe))], dim=-1)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 2 (n + r)] → kv_c bf16 [T, n], k_pe bf16 [T, r], bit for bit."""
    values = rows.contiguous().view(torch.bfloat16)
    return values[:, : geometry.kv_lora_rank], values[:, geometry.kv_lora_rank :]


@triton.jit
def encode(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens; see ``formats.base``."""
    values_ptr = row_ptr.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    nope = tl.arange(0, kv_c.shape[1])
    tl.store(values_ptr[:, None] + nope, kv_c.to(tl.bfloat16), within(mask, nope, KV_LORA_RANK))
    if ROPE_DIM > 0:
        rope = tl.arange(0, k_pe.shape[1])
        tl.store(values_ptr[:, None] + KV_LORA_RANK + rope, k_pe.to(tl.bfloat16), within(mask, rope, ROPE_DIM))


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
    values_ptr = row_ptr.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    nope = tl.arange(0, NOPE_BLOCK)
    rope = tl.arange(0, ROPE_BLOCK)
    kv_c = tl.load(values_ptr[:, None] + nope, within(mask, nope, KV_LORA_RANK), other=0.0)
    k_pe = tl.load(values_ptr[:, None] + KV_LORA_RANK + rope, within(mask, rope, ROPE_DIM), other=0.0)
    return kv_c, k_pe


def _conversion(arch: Architecture) -> str:
    return "none"


FORMATS = (
    CacheFormat(
        name="bf16",
        revision="raw",
        summary="bf16 as it comes",
        fields=fields,
        quantize=quantize,
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=_conversion,
    ),
)
