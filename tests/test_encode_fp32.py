"""A format's ``encode`` takes fp32 registers as well: what a fused kernel has not rounded is quantized as it is."""

import hypothesis
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from caches import geometry_of, poisoned_cache, rows_in
from hypothesis import strategies as st

from dsmla_bench.kernels.formats import all_formats
from dsmla_bench.kernels.launch import Launch, device_arch
from dsmla_bench.kernels.operations.pages import data_stride, token_pointers

EVERY_FORMAT = pytest.mark.parametrize("fmt", all_formats(), ids=lambda fmt: fmt.key)


@triton.jit
def encode_kernel(
    kv_c_ptr,
    k_pe_ptr,
    cache_ptr,
    scale_ptr,
    page_stride,
    data_stride,
    ENCODE: tl.constexpr,
    ARCH: tl.constexpr,
    SUFFIX_BYTES: tl.constexpr,
    KV_LORA_RANK: tl.constexpr,
):
    """Four tokens of fp32 into the page of four that is the cache."""
    token, nope = tl.arange(0, 4), tl.arange(0, 512)
    kv_c = tl.load(kv_c_ptr + token[:, None] * KV_LORA_RANK + nope, (nope < KV_LORA_RANK)[None, :], other=0.0)
    k_pe = tl.load(k_pe_ptr + token[:, None] * 64 + tl.arange(0, 64))
    row_ptr, suffix_ptr = token_pointers(cache_ptr, 0, token, page_stride, data_stride, 4, SUFFIX_BYTES)
    ENCODE(kv_c, k_pe, tl.load(scale_ptr), row_ptr, suffix_ptr, token >= 0, KV_LORA_RANK, 64, ARCH)


def encoded(fmt, kv_c, k_pe, scale):
    """Rows that ``encode`` writes for fp32 tokens [4, kv_lora_rank] and [4, 64]."""
    cache = poisoned_cache(fmt, 1, 4, kv_c.device)
    arguments = (kv_c, k_pe, cache, scale, cache.stride(0), data_stride(fmt, cache))
    constants = {
        "ENCODE": fmt.encode,
        "ARCH": device_arch(kv_c.device),
        "SUFFIX_BYTES": fmt.suffix_bytes,
        "KV_LORA_RANK": kv_c.shape[1],
    }
    Launch(encode_kernel, (1,), arguments, constants).run()
    return rows_in(fmt, cache)


@st.composite
def tokens(draw):
    """fp32 [4, 576] of full precision: random, ties nudged by an ulp, or all bits random (NaN and infinities too)."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["normal", "near ties", "bits"]))
    if kind == "bits":
        bits = generator.integers(-(2**31), 2**31, (4, 576)).astype(np.int32)
        return torch.from_numpy(bits).view(torch.float32) * 1.0  # what is computed is never a signalling NaN
    values = generator.standard_normal((4, 576)) * 10.0 ** draw(st.floats(-30, 30))
    if kind == "near ties":
        values = generator.integers(-96, 97, (4, 576)) / 16 * 2.0 ** draw(st.integers(-14, 8))
    values = values.astype(np.float32)
    steps = generator.integers(-1, 2, values.shape, dtype=np.int32)
    return torch.from_numpy((values.view(np.int32) + steps).view(np.float32))


@EVERY_FORMAT
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(values=tokens(), scale=st.sampled_from([1.0, 0.3, 2.0**-20]))
def test_encode_of_fp32_equals_quantize_of_fp32(fmt, device, values, scale):
    rank, factor = geometry_of(fmt).kv_lora_rank, torch.tensor([scale], device=device)
    kv_c, k_pe = values[:, :rank].contiguous().to(device), values[:, 512:].contiguous().to(device)
    expected = fmt.quantize(kv_c, k_pe, factor)
    assert int((encoded(fmt, kv_c, k_pe, factor) != expected).sum()) == 0
