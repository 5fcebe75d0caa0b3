"""What the lightning indexer keeps and asks for: vectors of 128 in e4m3 under one power-of-two scale each.

    value = e4m3(x / scale),  scale = 2^ceil(log2(max(amax, 1e-4) / 448)),  amax over the vector

The first 64 of the 128 values are rotated (``rope``). A page of n tokens in the indexer's cache holds n · 128 bytes of
e4m3 keys, then n fp32 scales: 132 bytes a token (vLLM's layout; on sm_100 vLLM 0.33 may store four ue8m0 bytes in the
scale's place, which the width does not tell). ``INDEXER_CACHE`` is that layout as a format without kernels of its own,
so that the functions of ``pages`` and ``checks`` serve it too.

In a kernel a vector is three blocks in registers: the first and the second values of the rotated pairs, 32 each, and
the 64 that are not rotated. So either pairing (``rope``) loads and stores without a shuffle.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import (
    amax_of_tiles,
    bytes_of,
    e4m3_conversion,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    inverse_pow2,
    mx_scale,
    mx_scale_bits,
)
from dsmla_bench.kernels.operations.norms import inverse_root
from dsmla_bench.kernels.operations.rope import rotate

INDEX_DIM = 128
INDEX_ROPE_DIM = 64
INDEX_GEOMETRY = Geometry(INDEX_DIM, 0)


def rotate_index(values: torch.Tensor, cos_sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """values fp32 [..., 128] with the first 64 rotated, cos_sin [..., 64] → fp32 [..., 128]."""
    rotated = rotate(values[..., :INDEX_ROPE_DIM], cos_sin, interleaved=interleaved)
    return torch.cat([rotated, values[..., INDEX_ROPE_DIM:]], dim=-1)


def quantize_index(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """values fp32 [..., 128] → e4m3 bytes (uint8) [..., 128] and fp32 scales [..., 1]. NaN does not count in amax."""
    scales = mx_scale(amax_of_tiles(values, INDEX_DIM))
    return e4m3_from_fp32(values / scales), scales


def _quantize(kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """Keys [T, 128] → rows uint8 [T, 132]. ``k_pe`` and ``scale`` are not used."""
    codes, scales = quantize_index(kv_c.float())
    return torch.cat([codes, bytes_of(scales)], dim=-1)


def _dequantize(
    rows: torch.Tensor, geometry: Geometry = INDEX_GEOMETRY, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 132] → keys bf16 [T, 128], exact, and nothing [T, 0]."""
    scales = rows[:, INDEX_DIM:].contiguous().view(torch.float32)
    keys = (fp32_from_e4m3(rows[:, :INDEX_DIM].contiguous()) * scales).to(torch.bfloat16)
    return keys, keys[:, INDEX_DIM:]


INDEXER_CACHE = CacheFormat(
    name="indexer",
    revision="fp32",
    summary="the indexer's keys: e4m3 with one power-of-two scale, fp32 scales at the page's end",
    fields=lambda geometry: (Field("key", "e4m3", 0, INDEX_DIM), Field("scale", "fp32", INDEX_DIM, 1)),
    quantize=_quantize,
    dequantize=_dequantize,
    encode=None,
    decode=None,
    conversion=e4m3_conversion,
    geometry=INDEX_GEOMETRY,
    suffix_bytes=4,
)


@triton.jit
def index_columns(INTERLEAVED: tl.constexpr):
    """Where in a vector the first and the second values of the rotated pairs lie, and the others: [32], [32], [64]."""
    pair = tl.arange(0, 32)
    rest = 64 + tl.arange(0, 64)
    if INTERLEAVED:
        return 2 * pair, 2 * pair + 1, rest
    else:
        return pair, 32 + pair, rest


@triton.jit
def load_index(row_ptr, live, INTERLEAVED: tl.constexpr):
    """Vectors at row_ptr [T] in three blocks, fp32 [T, 32], [T, 32] and [T, 64]; zeros where ``live`` is false."""
    first_column, second_column, rest_column = index_columns(INTERLEAVED)
    rows, mask = row_ptr[:, None], live[:, None]
    first = tl.load(rows + first_column, mask, other=0.0).to(tl.float32)
    second = tl.load(rows + second_column, mask, other=0.0).to(tl.float32)
    rest = tl.load(rows + rest_column, mask, other=0.0).to(tl.float32)
    return first, second, rest


@triton.jit
def layer_norm_index(row_ptr, weight_ptr, bias_ptr, live, EPS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Vectors at row_ptr [T] after LayerNorm (``norms``), in three blocks."""
    first, second, rest = load_index(row_ptr, live, INTERLEAVED)
    a, b, c = index_columns(INTERLEAVED)
    mean = tl.div_rn(_sum(first, second, rest), 128.0)[:, None]
    first, second, rest = first - mean, second - mean, rest - mean
    inverse = inverse_root(_sum(first * first, second * second, rest * rest), EPS, 128)
    first = first * inverse * _row(weight_ptr + a) + _row(bias_ptr + a)
    second = second * inverse * _row(weight_ptr + b) + _row(bias_ptr + b)
    rest = rest * inverse * _row(weight_ptr + c) + _row(bias_ptr + c)
    return first, second, rest


@triton.jit
def _row(pointers):
    """The values at pointers [n] as fp32 [1, n]."""
    return tl.load(pointers).to(tl.float32)[None, :]


@triton.jit
def _sum(first, second, rest):
    return tl.sum(first, axis=1) + tl.sum(second, axis=1) + tl.sum(rest, axis=1)


@triton.jit
def _amax(values):
    return tl.max(tl.where(values == values, tl.abs(values), 0.0), axis=1)


@triton.jit
def store_index(first, second, rest, codes_ptr, mask, INTERLEAVED: tl.constexpr):
    """Vectors in three blocks as e4m3 bytes at codes_ptr [T]; returns the bits (int32 [T]) of their fp32 scales."""
    bits = mx_scale_bits(tl.maximum(tl.maximum(_amax(first), _amax(second)), _amax(rest)))
    inverse, rows, mask = inverse_pow2(bits)[:, None], codes_ptr[:, None], mask[:, None]
    first_column, second_column, rest_column = index_columns(INTERLEAVED)
    tl.store(rows + first_column, encode_e4m3(first * inverse), mask)
    tl.store(rows + second_column, encode_e4m3(second * inverse), mask)
    tl.store(rows + rest_column, encode_e4m3(rest * inverse), mask)
    return bits
