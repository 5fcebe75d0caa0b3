"""The Triton kernels of ``decode``: attention over one slice of a query's rows, and putting the slices together.

``attend_kernel`` streams BLOCK_ROWS cached rows at a time through the format's ``decode`` and keeps a running softmax
(Milakov and Gimelshein 2018) for BLOCK_HEADS heads at once, so that a row is read and converted once for all of them.
The rows of a query are split among programs where there are too few queries to fill a chip; each leaves its own
normalised output and the logarithm of its sum, and ``combine_kernel`` weighs them (Flash-Decoding). Scores are kept in
units of log2, since the hardware's exponential is 2^x.

Rows lie at random places of the cache. While one tile is worked on, the rows of the next are asked for, so that a
load finds them in L2; with them a program waits for the indices in its first tile alone.

A converted tile feeds both products from one copy in shared memory. Left alone, Triton converts each tile twice, once
for the operand layout of either product; ``_settled`` stops that.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from dsmla_bench.kernels.launch import ceil_div
from dsmla_bench.kernels.operations.pages import token_pointers
from dsmla_bench.kernels.operations.prefetch import LINE_BYTES, prefetch

COMBINED_COLUMNS = 128
"""Output columns of one program that combines splits."""
COMBINED_SPLITS = 8
"""Splits that it reads at once."""
SHORT_ROW = 512
"""Bytes below which a row is one of four-bit codes."""
TILES_AHEAD = tl.constexpr(1)
"""How many tiles ahead rows are asked for."""
INDEX_LINES = tl.constexpr(64)
"""Lines of a program's indices that it asks for at its start."""


@dataclass(frozen=True)
class Configuration:
    """How ``attend_kernel`` is launched: a tile's heads and rows, warps, pipeline stages, programs that fill a chip."""

    block_heads: int
    block_rows: int
    num_warps: int
    num_stages: int
    programs: int


def configuration(heads: int, queries: int, row_bytes: int, arch: int) -> Configuration:
    """How to launch ``queries`` query tokens of ``heads`` heads over rows of so many bytes on capability arch / 10.

    Sixteen heads fill the smallest matrix instruction; two programs then share a multiprocessor. Where Hopper's or
    Blackwell's large matrix instructions exist, a program of more than 16 heads takes 64, the least that they work on,
    and a multiprocessor to itself. A chip that few queries leave empty takes small tiles and eight warps where there
    are no more than 16 heads to share it. Rows of four-bit codes are short: tiles hold more of them, and a pipeline
    saves less in waiting than it costs. ``programs`` are those of an H200's 132 multiprocessors, where this was
    measured. In the interpreter (arch 0) kernels are launched as on Hopper.
    """
    generation = arch // 10 or 9
    if heads > 16 and queries >= 8 and generation in (9, 10):
        return Configuration(64, 64, 8, 2 if generation == 9 and row_bytes >= SHORT_ROW else 1, 132)
    if heads <= 16 and queries >= 64 and row_bytes < SHORT_ROW:
        return Configuration(16, 128, 8, 1, 132)
    return Configuration(16, 64, 8 if heads <= 16 and queries < 8 else 4, 1, 264)


def candidates(heads: int, arch: int) -> tuple[Configuration, ...]:
    """What may be the fastest for queries of ``heads`` heads: the front of a wider grid measured on an H200."""
    if heads > 16 and arch // 10 in (0, 9, 10):
        large = ((32, 8, 2), (32, 8, 3), (64, 8, 1), (64, 8, 2))
        one_query = (Configuration(16, 64, 4, 1, 264), Configuration(16, 64, 8, 1, 264))
        return (*one_query, *(Configuration(64, *shape, 132) for shape in large))
    small = ((32, 4, 1), (32, 4, 3), (64, 4, 1), (64, 4, 2), (64, 8, 1), (128, 8, 1))
    return tuple(Configuration(16, *shape, programs) for shape in small for programs in (132, 264))


def rows_per_split(config: Configuration, queries: int, heads: int, topk: int) -> int:
    """Rows of a query that one program takes: a multiple of BLOCK_ROWS, so that the programs about fill the chip."""
    blocks = ceil_div(topk, config.block_rows)
    splits = config.programs // max(1, queries * ceil_div(heads, config.block_heads))
    return ceil_div(blocks, min(max(splits, 1), blocks)) * config.block_rows


@triton.jit
def _settled(values, COMPILED: tl.constexpr):
    """The same values, behind an instruction that the compiler may not repeat for a second layout."""
    if COMPILED:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values], dtype=values.dtype, is_pure=False, pack=2)
    else:
        return values


@triton.jit
def _prefetch_rows(
    start,
    end,
    indices_ptr,
    cache_ptr,
    capacity,
    page_stride,
    data_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    ROW_LINES: tl.constexpr,
):
    """Ask for the BLOCK_ROWS rows whose indices begin at ``start``, as far as ``end`` and the cache go."""
    position = start + tl.arange(0, BLOCK_ROWS)
    slot = tl.load(indices_ptr + position, position < end, other=-1).to(tl.uint32)
    page, row = (slot // BLOCK_SIZE).to(tl.int64), (slot % BLOCK_SIZE).to(tl.int64)
    row_ptr = cache_ptr + page * page_stride + row * data_stride
    place = LINE_BYTES * tl.arange(0, ROW_LINES)
    prefetch(row_ptr[:, None] + place, (slot < capacity.to(tl.uint32))[:, None] & (place < ROW_BYTES)[None, :])


@triton.jit
def _finished(out, lse2, sink_ptr, head, head_mask):
    """[H, columns] outputs scaled by the sink and their lse, out of log2 ones: 0 and +inf where there was no row."""
    if sink_ptr is not None:
        sink = tl.load(sink_ptr + head, head_mask, other=0.0) * 1.4426950408889634
        out = out / (1.0 + tl.exp2(sink - lse2))[:, None]
    empty = lse2 == float("-inf")
    return tl.where(empty[:, None], 0.0, out), tl.where(empty, float("inf"), lse2 * 0.6931471805599453)


@triton.jit(do_not_specialize=["heads", "topk", "split_rows", "splits", "capacity", "softmax_scale"])
def attend_kernel(
    q_ptr,
    cache_ptr,
    indices_ptr,
    scale_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    softmax_scale,
    heads,
    topk,
    split_rows,
    splits,
    capacity,
    q_stride,
    q_head_stride,
    indices_stride,
    page_stride,
    data_stride,
    out_split_stride,
    out_stride,
    out_head_stride,
    lse_split_stride,
    lse_stride,
    DECODE: tl.constexpr,
    COMPILED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SUFFIX_BYTES: tl.constexpr,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    ROW_LINES: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Grid (head blocks · splits · queries,): BLOCK_HEADS heads of a query over ``split_rows`` of its rows.

    With WHOLE the rows are all of the query's, and what is stored is the result; otherwise fp32 outputs and log2 lse.
    """
    program = tl.program_id(0)
    head_blocks = tl.cdiv(heads, BLOCK_HEADS)
    head = program % head_blocks * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    split = program // head_blocks % splits
    query = (program // head_blocks // splits).to(tl.int64)
    head_mask = head < heads
    nope, rope = tl.arange(0, NOPE_BLOCK), tl.arange(0, ROPE_BLOCK)
    q_row_ptr = q_ptr + query * q_stride + head[:, None] * q_head_stride
    q_nope = tl.load(q_row_ptr + nope, head_mask[:, None] & (nope < KV_LORA_RANK)[None, :], other=0.0)
    q_rope = tl.load(q_row_ptr + KV_LORA_RANK + rope, head_mask[:, None] & (rope < ROPE_DIM)[None, :], other=0.0)
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)

    largest = tl.full((BLOCK_HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)
    out = tl.zeros((BLOCK_HEADS, NOPE_BLOCK), tl.float32)
    indices_ptr += query * indices_stride
    begin, end = split * split_rows, tl.minimum((split + 1) * split_rows, topk)
    if COMPILED:
        place = begin + LINE_BYTES // 4 * tl.arange(0, INDEX_LINES)
        prefetch(indices_ptr + place, place < end)
        for tile in tl.static_range(TILES_AHEAD):
            _prefetch_rows(
                begin + tile * BLOCK_ROWS,
                end,
                indices_ptr,
                cache_ptr,
                capacity,
                page_stride,
                data_stride,
                BLOCK_ROWS,
                BLOCK_SIZE,
                ROW_BYTES,
                ROW_LINES,
            )
    for start in tl.range(begin, end, BLOCK_ROWS, num_stages=STAGES):
        if COMPILED:
            _prefetch_rows(
                start + TILES_AHEAD * BLOCK_ROWS,
                end,
                indices_ptr,
                cache_ptr,
                capacity,
                page_stride,
                data_stride,
                BLOCK_ROWS,
                BLOCK_SIZE,
                ROW_BYTES,
                ROW_LINES,
            )
        position = start + tl.arange(0, BLOCK_ROWS)
        # Unsigned, so that one comparison refuses negative slots too, and a division by a power of two is a shift.
        slot = tl.load(indices_ptr + position, position < end, other=-1).to(tl.uint32)
        valid = slot < capacity.to(tl.uint32)
        page, row = (slot // BLOCK_SIZE).to(tl.int64), (slot % BLOCK_SIZE).to(tl.int64)
        row_ptr, suffix_ptr = token_pointers(cache_ptr, page, row, page_stride, data_stride, BLOCK_SIZE, SUFFIX_BYTES)
        kv_c, k_pe = DECODE(row_ptr, suffix_ptr, valid, scale, KV_LORA_RANK, ROPE_DIM, NOPE_BLOCK, ROPE_BLOCK)
        if KV_LORA_RANK < NOPE_BLOCK:
            kv_c = tl.where((nope < KV_LORA_RANK)[None, :], kv_c, 0.0)
        kv_c = _settled(kv_c, COMPILED)
        scores = tl.dot(q_nope.to(kv_c.dtype), tl.trans(kv_c))
        if ROPE_DIM > 0:
            if ROPE_DIM < ROPE_BLOCK:
                k_pe = tl.where((rope < ROPE_DIM)[None, :], k_pe, 0.0)
            scores = tl.dot(q_rope, tl.trans(k_pe), scores)
        scores = tl.where(valid[None, :], scores * softmax_scale, float("-inf"))
        highest = tl.maximum(largest, tl.max(scores, axis=1))
        anchor = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - anchor[:, None])
        fade = tl.exp2(largest - anchor)
        total = total * fade + tl.sum(weights, axis=1)
        out = tl.dot(weights.to(kv_c.dtype), kv_c, out * fade[:, None])
        largest = highest

    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    lse2 = largest + tl.log2(total)
    out_ptr += split.to(tl.int64) * out_split_stride + query * out_stride
    lse_ptr += split.to(tl.int64) * lse_split_stride + query * lse_stride
    if WHOLE:
        out, lse2 = _finished(out, lse2, sink_ptr, head, head_mask)
    out_mask = head_mask[:, None] & (nope < KV_LORA_RANK)[None, :]
    tl.store(out_ptr + head[:, None] * out_head_stride + nope[None, :], out.to(out_ptr.dtype.element_ty), out_mask)
    tl.store(lse_ptr + head, lse2, head_mask)


@triton.jit(do_not_specialize=["heads", "splits", "queries"])
def combine_kernel(
    parts_ptr,
    part_lse_ptr,
    sink_ptr,
    out_ptr,
    lse_ptr,
    heads,
    splits,
    queries,
    KV_LORA_RANK: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Grid (queries · heads, column blocks): BLOCK_COLUMNS columns of one head's output out of all splits.

    Parts, outputs and lse are contiguous.
    """
    line = tl.program_id(0).to(tl.int64) + tl.zeros((1,), tl.int64)
    lines = queries.to(tl.int64) * heads
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    column_mask = column < KV_LORA_RANK
    largest = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    out = tl.zeros((1, BLOCK_COLUMNS), tl.float32)
    for start in range(0, splits, BLOCK_SPLITS):
        split = start + tl.arange(0, BLOCK_SPLITS)
        mask = split < splits
        place = split * lines + line
        lse2 = tl.load(part_lse_ptr + place, mask, other=float("-inf"))
        part_ptr = parts_ptr + (place * KV_LORA_RANK)[:, None] + column
        parts = tl.load(part_ptr, mask[:, None] & column_mask[None, :], other=0.0)
        highest = tl.maximum(largest, tl.max(lse2, axis=0, keep_dims=True))
        anchor = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(lse2 - anchor)
        fade = tl.exp2(largest - anchor)
        total = total * fade + tl.sum(weights, axis=0, keep_dims=True)
        out = out * fade[:, None] + tl.sum(weights[:, None] * parts, axis=0, keep_dims=True)
        largest = highest
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    out, lse = _finished(out, largest + tl.log2(total), sink_ptr, line % heads, line >= 0)
    tl.store(out_ptr + (line * KV_LORA_RANK)[:, None] + column, out.to(tl.bfloat16), column_mask[None, :])
    if tl.program_id(1) == 0:
        tl.store(lse_ptr + line, lse)
