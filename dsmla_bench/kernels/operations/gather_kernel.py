"""The Triton kernel of gather; ``gather`` has its arguments and what they mean.

A program finds the requests that its workspace rows belong to among the starts, AT_ONCE at a time, then their pages,
then decodes the rows. These loads wait for each other, so each is asked for as early as it can be.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsmla_bench.kernels.operations.pages import page_and_row, token_pointers
from dsmla_bench.kernels.operations.prefetch import LINE_BYTES, prefetch

AT_ONCE = tl.constexpr(32)
"""Starts that a warp looks at together."""
LINE_ENTRIES = tl.constexpr(LINE_BYTES.value // 4)
"""Entries of a block table in one line."""


@triton.jit(do_not_specialize=["num_tokens", "num_requests", "search_stride", "num_blocks", "max_pages"])
def gather_kernel(
    cache_ptr,
    block_table_ptr,
    workspace_starts_ptr,
    seq_starts_ptr,
    workspace_ptr,
    scale_ptr,
    num_tokens,
    num_requests,
    search_stride,
    num_blocks,
    max_pages,
    block_table_stride,
    page_stride,
    data_stride,
    workspace_stride,
    DECODE: tl.constexpr,
    PREFETCH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SUFFIX_BYTES: tl.constexpr,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    SEARCH: tl.constexpr,
    FIRST_PAGES: tl.constexpr,
):
    """Grid (ceil(N / BLOCK_TOKENS),): each program finds the pages of BLOCK_TOKENS workspace rows and decodes them."""
    if PREFETCH:
        # Which entries are needed is known only once the starts are here; until then the table comes into L2 by lines.
        entry = tl.program_id(0) * LINE_ENTRIES
        prefetch(block_table_ptr + entry, entry < (num_requests - 1) * block_table_stride + max_pages)
    first = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS
    token = first + tl.arange(0, BLOCK_TOKENS)
    begin = tl.full((), 0, tl.int32)
    if SEARCH:
        begin = _near_owner(first, workspace_starts_ptr, num_requests, search_stride)
    request, start, first_page = _owners(
        first, begin, workspace_starts_ptr, num_requests, block_table_ptr, block_table_stride, BLOCK_TOKENS, FIRST_PAGES
    )
    mask = (token < num_tokens) & (request >= 0)
    position = token - start
    if seq_starts_ptr is not None:
        position += tl.load(seq_starts_ptr + request, mask, other=0).to(tl.int64)
    logical_page, row = page_and_row(position, BLOCK_SIZE)
    mask &= (position >= 0) & (logical_page < max_pages)
    table_ptr = block_table_ptr + request.to(tl.int64) * block_table_stride + logical_page
    if FIRST_PAGES:
        page = tl.load(table_ptr, mask & (logical_page > 0), other=-1)
        page = tl.where(logical_page > 0, page, first_page).to(tl.int64)
    else:
        page = tl.load(table_ptr, mask, other=-1).to(tl.int64)
    mask &= (page >= 0) & (page < num_blocks)
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    row_ptr, suffix_ptr = token_pointers(cache_ptr, page, row, page_stride, data_stride, BLOCK_SIZE, SUFFIX_BYTES)
    kv_c, k_pe = DECODE(row_ptr, suffix_ptr, mask, scale, KV_LORA_RANK, ROPE_DIM, NOPE_BLOCK, ROPE_BLOCK)
    nope = tl.arange(0, NOPE_BLOCK)
    rope = tl.arange(0, ROPE_BLOCK)
    out_ptr = workspace_ptr + (token * workspace_stride)[:, None]
    tl.store(out_ptr + nope, kv_c, mask[:, None] & (nope < KV_LORA_RANK)[None, :])
    if ROPE_DIM > 0:
        tl.store(out_ptr + KV_LORA_RANK + rope, k_pe, mask[:, None] & (rope < ROPE_DIM)[None, :])


@triton.jit
def _near_owner(row, workspace_starts_ptr, num_requests, stride):
    """A request from which the owner of ``row`` is less than AT_ONCE requests on: AT_ONCE at a time, ever closer."""
    near = tl.full((), 0, tl.int32)
    while stride > 1:
        index = near + stride * tl.arange(0, AT_ONCE)
        starts = tl.load(workspace_starts_ptr + index, index < num_requests, other=2147483647)
        begun = tl.sum((starts <= row).to(tl.int32), axis=0)
        near += tl.maximum(begun - 1, 0) * stride
        stride = stride // AT_ONCE
    return near


@triton.jit
def _owners(
    first,
    begin,
    workspace_starts_ptr,
    num_requests,
    block_table_ptr,
    block_table_stride,
    BLOCK_TOKENS: tl.constexpr,
    FIRST_PAGES: tl.constexpr,
):
    """Of rows from ``first`` on, the owner, its start and (FIRST_PAGES) its first page: int32 [BLOCK_TOKENS] each.

    The owner is the last request whose start is at most the row, -1 for none; no row's is before ``begin`` - 1. Row by
    row: counting the starts of one takes two instructions of a warp, those of several a reduction in memory. First
    pages are loaded for all of the requests along with their starts, so that neither load waits for the other.
    """
    place = tl.arange(0, BLOCK_TOKENS)
    owner = tl.full(place.shape, -1, tl.int32) + begin
    start = tl.zeros(place.shape, tl.int32)
    first_page = tl.full(place.shape, -1, tl.int32)
    while begin < num_requests:
        index = begin + tl.arange(0, AT_ONCE)
        starts = tl.load(workspace_starts_ptr + index, index < num_requests, other=2147483647)
        starts = tl.minimum(starts, 2147483647).to(tl.int32)
        if FIRST_PAGES:
            table_ptr = block_table_ptr + index.to(tl.int64) * block_table_stride
            pages = tl.load(table_ptr, index < num_requests, other=-1)
        begun = tl.full((), 0, tl.int32)
        for row in tl.static_range(BLOCK_TOKENS):
            has_begun = starts <= (first + row).to(tl.int32)
            begun = tl.sum(has_begun.to(tl.int32), axis=0)
            owner += tl.where(place == row, begun, 0)
            latest = tl.max(tl.where(has_begun, starts, 0), axis=0)
            start = tl.where(place == row, tl.maximum(start, latest), start)
            if FIRST_PAGES:
                page = tl.sum(tl.where(tl.arange(0, AT_ONCE) == begun - 1, pages, 0), axis=0)
                first_page = tl.where((place == row) & (begun > 0), page, first_page)
        begin = tl.where(begun == AT_ONCE, begin + AT_ONCE, num_requests)
    return owner, start, first_page
