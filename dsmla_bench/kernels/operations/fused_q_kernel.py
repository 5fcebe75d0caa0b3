"""The Triton kernel of fused_q; ``fused_q`` has its arguments and what they mean.

A program takes a few heads of any tokens, counted token by token, of the query or of the indexer's. So an odd number of
heads leaves no program short.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsmla_bench.kernels.formats.fp8 import divided_codes
from dsmla_bench.kernels.formats.numerics import within
from dsmla_bench.kernels.operations.indexer import load_index, store_index
from dsmla_bench.kernels.operations.norms import load_rows, store_bf16
from dsmla_bench.kernels.operations.rope import load_cos_sin, rotate_interleaved, rotate_pairs


@triton.jit(do_not_specialize=["num_tokens"])
def fused_q_kernel(
    positions_ptr,
    q_pe_ptr,
    ql_nope_ptr,
    cos_sin_ptr,
    q_scale_ptr,
    query_ptr,
    index_q_ptr,
    index_cos_sin_ptr,
    index_weights_ptr,
    index_q_out_ptr,
    index_weights_out_ptr,
    num_tokens,
    q_pe_stride,
    q_pe_head_stride,
    ql_nope_stride,
    ql_nope_head_stride,
    query_stride,
    query_head_stride,
    cos_sin_stride,
    index_q_stride,
    index_q_head_stride,
    index_q_out_stride,
    index_q_out_head_stride,
    index_cos_sin_stride,
    index_weights_stride,
    index_weights_out_stride,
    HEADS: tl.constexpr,
    INDEX_HEADS: tl.constexpr,
    NOPE_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    QUANTIZED: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SOFTMAX_SCALE: tl.constexpr,
    HEAD_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    INDEX_ROWS: tl.constexpr,
):
    """Grid (ceil(T · HEADS / ROWS) + ceil(T · INDEX_HEADS / INDEX_ROWS),): heads of any tokens, the query's first."""
    program = tl.program_id(0).to(tl.int64)
    query_programs = tl.cdiv(num_tokens.to(tl.int64) * HEADS, ROWS)
    if program < query_programs:
        _rotate_query(
            program * ROWS,
            num_tokens,
            positions_ptr,
            q_pe_ptr,
            q_pe_stride,
            q_pe_head_stride,
            ql_nope_ptr,
            ql_nope_stride,
            ql_nope_head_stride,
            cos_sin_ptr,
            cos_sin_stride,
            q_scale_ptr,
            query_ptr,
            query_stride,
            query_head_stride,
            HEADS,
            NOPE_DIM,
            ROPE_DIM,
            NOPE_BLOCK,
            ROPE_BLOCK,
            QUANTIZED,
            ROWS,
        )
    elif index_q_ptr is not None:
        _quantize_index_query(
            (program - query_programs) * INDEX_ROWS,
            num_tokens,
            positions_ptr,
            index_q_ptr,
            index_q_stride,
            index_q_head_stride,
            index_cos_sin_ptr,
            index_cos_sin_stride,
            index_weights_ptr,
            index_weights_stride,
            index_q_out_ptr,
            index_q_out_stride,
            index_q_out_head_stride,
            index_weights_out_ptr,
            index_weights_out_stride,
            INDEX_HEADS,
            INTERLEAVED,
            SOFTMAX_SCALE,
            HEAD_SCALE,
            INDEX_ROWS,
        )


@triton.jit
def _heads_of(first_row, num_tokens, HEADS: tl.constexpr, ROWS: tl.constexpr):
    """ROWS heads from ``first_row`` on, counted token by token: token, head, and whether there is one, [ROWS] each."""
    row = first_row + tl.arange(0, ROWS)
    token = row // HEADS
    return token, row % HEADS, token < num_tokens


@triton.jit
def _rotate_query(
    first_row,
    num_tokens,
    positions_ptr,
    q_pe_ptr,
    q_pe_stride,
    q_pe_head_stride,
    ql_nope_ptr,
    ql_nope_stride,
    ql_nope_head_stride,
    cos_sin_ptr,
    cos_sin_stride,
    q_scale_ptr,
    query_ptr,
    query_stride,
    query_head_stride,
    HEADS: tl.constexpr,
    NOPE_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    QUANTIZED: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The queries of ROWS heads. Whatever waits for no position is loaded first."""
    token, head, live = _heads_of(first_row, num_tokens, HEADS, ROWS)
    position = tl.load(positions_ptr + token, live, other=0)
    out_ptr = query_ptr + token * query_stride + head * query_head_stride
    q_pe = load_rows(q_pe_ptr + token * q_pe_stride + head * q_pe_head_stride, live, ROPE_DIM, ROPE_BLOCK)
    scale = 1.0
    if q_scale_ptr is not None:
        scale = tl.load(q_scale_ptr)
    if QUANTIZED:
        column = tl.arange(0, NOPE_BLOCK)
        nope_ptr = ql_nope_ptr + token * ql_nope_stride + head * ql_nope_head_stride
        ql_nope = tl.load(nope_ptr[:, None] + column, within(live, column, NOPE_DIM), other=0.0)
        _store_e4m3(out_ptr, ql_nope, scale, live, NOPE_DIM)
    cos, sin = load_cos_sin(cos_sin_ptr, cos_sin_stride, position, live, ROPE_DIM // 2, ROPE_BLOCK // 2)
    q_pe = rotate_interleaved(q_pe, cos, sin)
    if QUANTIZED:
        _store_e4m3(out_ptr + NOPE_DIM, q_pe, scale, live, ROPE_DIM)
    else:
        store_bf16(out_ptr, q_pe, live, ROPE_DIM)


@triton.jit
def _store_e4m3(row_ptr, values, scale, live, WIDTH: tl.constexpr):
    """The first WIDTH columns of values [T, BLOCK] over scale to the rows at row_ptr [T], as e4m3 bytes."""
    column = tl.arange(0, values.shape[1])
    tl.store(row_ptr[:, None] + column, divided_codes(values, scale), within(live, column, WIDTH))


@triton.jit
def _quantize_index_query(
    first_row,
    num_tokens,
    positions_ptr,
    index_q_ptr,
    index_q_stride,
    index_q_head_stride,
    cos_sin_ptr,
    cos_sin_stride,
    weights_ptr,
    weights_stride,
    out_ptr,
    out_stride,
    out_head_stride,
    weights_out_ptr,
    weights_out_stride,
    HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    SOFTMAX_SCALE: tl.constexpr,
    HEAD_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The indexer's queries of ROWS heads, and their weights."""
    token, head, live = _heads_of(first_row, num_tokens, HEADS, ROWS)
    position = tl.load(positions_ptr + token, live, other=0)
    row_ptr = index_q_ptr + token * index_q_stride + head * index_q_head_stride
    first, second, rest = load_index(row_ptr, live, INTERLEAVED)
    weight = tl.load(weights_ptr + token * weights_stride + head, live, other=0.0).to(tl.float32)
    cos, sin = load_cos_sin(cos_sin_ptr, cos_sin_stride, position, live, 32, 32)
    first, second = rotate_pairs(first, second, cos, sin)
    codes_ptr = out_ptr + token * out_stride + head * out_head_stride
    scale = store_index(first, second, rest, codes_ptr, live, INTERLEAVED).to(tl.float32, bitcast=True)
    weight = weight * scale * SOFTMAX_SCALE * HEAD_SCALE
    tl.store(weights_out_ptr + token * weights_out_stride + head, weight, live)
