"""The Triton kernel of fused_norm_rope; ``fused_norm_rope`` has its arguments and what they mean.

Four jobs share the tokens: latents into the cache, norms of queries, the indexer's keys, and clearing the top-k. A
program does one of them for a few tokens, so that their different needs of bytes in flight can be met one by one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsmla_bench.kernels.formats.numerics import within
from dsmla_bench.kernels.operations.indexer import layer_norm_index, store_index
from dsmla_bench.kernels.operations.norms import load_rows, load_weight, rms_norm_rows, store_bf16
from dsmla_bench.kernels.operations.pages import token_pointers
from dsmla_bench.kernels.operations.rope import load_cos_sin, rotate_interleaved, rotate_pairs


@triton.jit(do_not_specialize=["num_tokens"])
def fused_norm_rope_kernel(
    positions_ptr,
    slot_mapping_ptr,
    q_c_ptr,
    q_weight_ptr,
    q_c_out_ptr,
    kv_c_ptr,
    kv_weight_ptr,
    k_pe_ptr,
    cos_sin_ptr,
    kv_c_out_ptr,
    k_pe_out_ptr,
    cache_ptr,
    scale_ptr,
    index_k_ptr,
    index_weight_ptr,
    index_bias_ptr,
    index_cos_sin_ptr,
    index_cache_ptr,
    index_slot_mapping_ptr,
    topk_indices_ptr,
    num_tokens,
    q_c_stride,
    q_c_out_stride,
    kv_c_stride,
    k_pe_stride,
    cos_sin_stride,
    kv_c_out_stride,
    k_pe_out_stride,
    page_stride,
    data_stride,
    index_k_stride,
    index_cos_sin_stride,
    index_page_stride,
    topk_stride,
    ENCODE: tl.constexpr,
    ARCH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SUFFIX_BYTES: tl.constexpr,
    Q_LORA_RANK: tl.constexpr,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    INDEX_BLOCK_SIZE: tl.constexpr,
    TOPK: tl.constexpr,
    Q_BLOCK: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    TOPK_BLOCK: tl.constexpr,
    RMS_EPS: tl.constexpr,
    INDEX_EPS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    UNIT: tl.constexpr,
    PROGRAMS: tl.constexpr,
    KV_TOKENS: tl.constexpr,
    Q_TOKENS: tl.constexpr,
    INDEX_TOKENS: tl.constexpr,
    TOPK_TOKENS: tl.constexpr,
):
    """Grid (ceil(T / UNIT) · PROGRAMS,): the programs of a unit of tokens share its jobs out, the longest job first."""
    start = (tl.program_id(0) // PROGRAMS).to(tl.int64) * UNIT
    program = tl.program_id(0) % PROGRAMS
    first_q: tl.constexpr = UNIT // KV_TOKENS
    first_index: tl.constexpr = first_q + UNIT // Q_TOKENS
    first_topk: tl.constexpr = first_index + UNIT // INDEX_TOKENS
    if program < first_q:
        _cache_latents(
            start + program * KV_TOKENS,
            num_tokens,
            positions_ptr,
            slot_mapping_ptr,
            kv_c_ptr,
            kv_c_stride,
            kv_weight_ptr,
            k_pe_ptr,
            k_pe_stride,
            cos_sin_ptr,
            cos_sin_stride,
            kv_c_out_ptr,
            kv_c_out_stride,
            k_pe_out_ptr,
            k_pe_out_stride,
            cache_ptr,
            scale_ptr,
            page_stride,
            data_stride,
            ENCODE,
            ARCH,
            BLOCK_SIZE,
            SUFFIX_BYTES,
            KV_LORA_RANK,
            ROPE_DIM,
            NOPE_BLOCK,
            ROPE_BLOCK,
            RMS_EPS,
            KV_TOKENS,
        )
    elif program < first_index:
        _norm_queries(
            start + (program - first_q) * Q_TOKENS,
            num_tokens,
            q_c_ptr,
            q_c_stride,
            q_weight_ptr,
            q_c_out_ptr,
            q_c_out_stride,
            Q_LORA_RANK,
            Q_BLOCK,
            RMS_EPS,
            Q_TOKENS,
        )
    elif index_k_ptr is not None:
        if program < first_topk:
            _cache_index_keys(
                start + (program - first_index) * INDEX_TOKENS,
                num_tokens,
                positions_ptr,
                slot_mapping_ptr,
                index_slot_mapping_ptr,
                index_k_ptr,
                index_k_stride,
                index_weight_ptr,
                index_bias_ptr,
                index_cos_sin_ptr,
                index_cos_sin_stride,
                index_cache_ptr,
                index_page_stride,
                INDEX_BLOCK_SIZE,
                INDEX_EPS,
                INTERLEAVED,
                INDEX_TOKENS,
            )
        else:
            first_token = start + (program - first_topk) * TOPK_TOKENS
            _clear_topk(first_token, num_tokens, topk_indices_ptr, topk_stride, TOPK, TOPK_BLOCK, TOPK_TOKENS)


@triton.jit
def _cache_latents(
    first_token,
    num_tokens,
    positions_ptr,
    slot_mapping_ptr,
    kv_c_ptr,
    kv_c_stride,
    kv_weight_ptr,
    k_pe_ptr,
    k_pe_stride,
    cos_sin_ptr,
    cos_sin_stride,
    kv_c_out_ptr,
    kv_c_out_stride,
    k_pe_out_ptr,
    k_pe_out_stride,
    cache_ptr,
    scale_ptr,
    page_stride,
    data_stride,
    ENCODE: tl.constexpr,
    ARCH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SUFFIX_BYTES: tl.constexpr,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """kv_c and k_pe of TOKENS tokens into the cache. Whatever waits for no position is loaded first."""
    token = first_token + tl.arange(0, TOKENS)
    live = token < num_tokens
    slot = tl.load(slot_mapping_ptr + token, live, other=-1).to(tl.int64)
    position = tl.load(positions_ptr + token, live, other=0)
    kv_c = load_rows(kv_c_ptr + token * kv_c_stride, live, KV_LORA_RANK, NOPE_BLOCK)
    k_pe = load_rows(k_pe_ptr + token * k_pe_stride, live, ROPE_DIM, ROPE_BLOCK)
    weight = load_weight(kv_weight_ptr, KV_LORA_RANK, NOPE_BLOCK)
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    if ROPE_DIM > 0:
        used = slot >= 0 if k_pe_out_ptr is None else live
        cos, sin = load_cos_sin(cos_sin_ptr, cos_sin_stride, position, used, ROPE_DIM // 2, ROPE_BLOCK // 2)
        k_pe = rotate_interleaved(k_pe, cos, sin)
    kv_c = rms_norm_rows(kv_c, weight, EPS, KV_LORA_RANK)
    if kv_c_out_ptr is not None:
        store_bf16(kv_c_out_ptr + token * kv_c_out_stride, kv_c, live, KV_LORA_RANK)
        store_bf16(k_pe_out_ptr + token * k_pe_out_stride, k_pe, live, ROPE_DIM)
    page, row = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    row_ptr, suffix_ptr = token_pointers(cache_ptr, page, row, page_stride, data_stride, BLOCK_SIZE, SUFFIX_BYTES)
    ENCODE(kv_c, k_pe, scale, row_ptr, suffix_ptr, slot >= 0, KV_LORA_RANK, ROPE_DIM, ARCH)


@triton.jit
def _cache_index_keys(
    first_token,
    num_tokens,
    positions_ptr,
    slot_mapping_ptr,
    index_slot_mapping_ptr,
    index_k_ptr,
    index_k_stride,
    weight_ptr,
    bias_ptr,
    cos_sin_ptr,
    cos_sin_stride,
    cache_ptr,
    page_stride,
    BLOCK_SIZE: tl.constexpr,
    EPS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """The keys of TOKENS tokens into the indexer's cache."""
    token = first_token + tl.arange(0, TOKENS)
    live = token < num_tokens
    slot = tl.load(index_slot_mapping_ptr + token, live, other=-1).to(tl.int64)
    written = (slot >= 0) & (tl.load(slot_mapping_ptr + token, live, other=-1) >= 0)
    position = tl.load(positions_ptr + token, live, other=0)
    first, second, rest = layer_norm_index(
        index_k_ptr + token * index_k_stride, weight_ptr, bias_ptr, live, EPS, INTERLEAVED
    )
    cos, sin = load_cos_sin(cos_sin_ptr, cos_sin_stride, position, written, 32, 32)
    first, second = rotate_pairs(first, second, cos, sin)
    page, row = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    key_ptr, scale_ptr = token_pointers(cache_ptr, page, row, page_stride, 128, BLOCK_SIZE, 4)
    scale_bits = store_index(first, second, rest, key_ptr, written, INTERLEAVED)
    scale_ptr = scale_ptr.to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(scale_ptr, scale_bits.to(tl.float32, bitcast=True), written)


@triton.jit
def _norm_queries(
    first_token,
    num_tokens,
    q_c_ptr,
    q_c_stride,
    weight_ptr,
    out_ptr,
    out_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    EPS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """q_c of TOKENS tokens."""
    token = first_token + tl.arange(0, TOKENS)
    live = token < num_tokens
    q_c = load_rows(q_c_ptr + token * q_c_stride, live, WIDTH, BLOCK)
    q_c = rms_norm_rows(q_c, load_weight(weight_ptr, WIDTH, BLOCK), EPS, WIDTH)
    store_bf16(out_ptr + token * out_stride, q_c, live, WIDTH)


@triton.jit
def _clear_topk(
    first_token, num_tokens, topk_ptr, topk_stride, TOPK: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr
):
    """-1 into the rows of TOKENS tokens."""
    token = first_token + tl.arange(0, TOKENS)
    column = tl.arange(0, BLOCK)
    row_ptr = topk_ptr + token * topk_stride
    tl.store(row_ptr[:, None] + column, -1, within(token < num_tokens, column, TOPK))
