"""gather (``cp_gather_and_upconvert``): read the rows of several requests into one bf16 workspace, from any format.

    cache             uint8 [blocks, block_size, row_bytes], rows and pages may be padded (``pages``)
    block_table       int32 [requests, max_pages]: the pages of every request
    workspace_starts  int32 or int64 [>= requests]: the first workspace row of every request, ascending from 0
    seq_starts        int32 or int64 [>= requests] or None: the position in its request at which each one starts
    workspace         bf16 [N, kv_lora_rank + rope_dim]: row i belongs to the last request whose start is at most i

N is the length of workspace; request r fills rows starts[r] .. starts[r + 1], the last one up to N; an empty request
fills none. N = 0 does nothing. Rows that no request owns, or whose page is not in the table or the cache, are left as
they are, and nothing outside is read. Starts that do not ascend leave undefined which rows a request gets. Semantics of
vLLM's ``cp_gather_and_upconvert_fp8_kv_cache``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div, device_arch
from dsmla_bench.kernels.operations.base import Operation, Shape, Traffic, layer_scale, page_order, random_latents
from dsmla_bench.kernels.operations.pages import cache_of, data_stride, load_rows, page_and_row, token_pointers
from dsmla_bench.kernels.operations.prefetch import LINE_BYTES, prefetch
from dsmla_bench.kernels.operations.tuning import TOKEN_BLOCKS, TokenBlock, Tuning

AT_ONCE = tl.constexpr(32)
"""Starts that a warp looks at together."""
FEW_TOKENS = 1024
"""Rows up to which latency is all that counts, and reading more than is needed costs nothing."""
LINE_ENTRIES = tl.constexpr(LINE_BYTES.value // 4)
"""Entries of a block table in one line."""


@dataclass(frozen=True)
class GatherInputs:
    """The arguments of a gather; the module docstring has their shapes. ``scale`` is fp32 [1] or None for 1.0."""

    cache: torch.Tensor
    block_table: torch.Tensor
    workspace_starts: torch.Tensor
    workspace: torch.Tensor
    geometry: Geometry = Geometry()
    seq_starts: torch.Tensor | None = None
    scale: torch.Tensor | None = None


def cp_gather_and_upconvert(
    fmt: CacheFormat,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    workspace_starts: torch.Tensor,
    workspace: torch.Tensor,
    seq_starts: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    *,
    geometry: Geometry = Geometry(),
    check_values: bool = False,
) -> None:
    """Gather into ``workspace`` with the Triton kernel; shapes in the module docstring.

    With ``check_values`` starts and pages that cannot be right are refused, at the price of a synchronisation. Raises
    ValueError, before anything is launched, for what cannot be right.
    """
    inputs = GatherInputs(cache, block_table, workspace_starts, workspace, geometry, seq_starts, scale)
    launch = plan(fmt, inputs, device_arch(cache.device))
    if check_values:
        checks.check_starts(block_table, workspace_starts, seq_starts, len(workspace), *cache.shape[:2])
    if launch is not None:
        launch.run()


def plan(fmt: CacheFormat, inputs: GatherInputs, arch: int, configuration: TokenBlock | None = None) -> Launch | None:
    """The launch for these arguments; None when no row or no request is asked for. Raises ValueError.

    Without a configuration it is the table's.
    """
    validate(fmt, inputs)
    geometry, tokens, requests = inputs.geometry, inputs.workspace.shape[0], inputs.block_table.shape[0]
    if tokens == 0 or requests == 0:
        return None
    chosen = configuration or _configuration(tokens)
    return Launch(
        kernel=gather_kernel,
        grid=(ceil_div(tokens, chosen.block_tokens),),
        args=(
            inputs.cache,
            inputs.block_table,
            inputs.workspace_starts,
            inputs.seq_starts,
            inputs.workspace,
            inputs.scale if fmt.external_scale else None,
            tokens,
            requests,
            _search_stride(requests),
            inputs.cache.shape[0],
            inputs.block_table.shape[1],
            inputs.block_table.stride(0),
            inputs.cache.stride(0),
            data_stride(fmt, inputs.cache),
            inputs.workspace.stride(0),
        ),
        constants={
            "DECODE": fmt.decode,
            "PREFETCH": isinstance(gather_kernel, triton.runtime.JITFunction) and inputs.block_table.shape[1] > 0,
            "BLOCK_SIZE": inputs.cache.shape[1],
            "SUFFIX_BYTES": fmt.suffix_bytes,
            "KV_LORA_RANK": geometry.kv_lora_rank,
            "ROPE_DIM": geometry.rope_dim,
            "NOPE_BLOCK": block_width(geometry.kv_lora_rank),
            "ROPE_BLOCK": block_width(geometry.rope_dim),
            "BLOCK_TOKENS": chosen.block_tokens,
            "SEARCH": requests > AT_ONCE.value,
            "FIRST_PAGES": tokens <= FEW_TOKENS and inputs.block_table.shape[1] > 0,
        },
        num_warps=chosen.num_warps,
    )


def validate(fmt: CacheFormat, inputs: GatherInputs) -> None:
    """Raise ValueError for shapes, types or addresses that cannot be right."""
    checks.check_cache(fmt, inputs.cache, inputs.geometry)
    checks.check_matrix("block_table", inputs.block_table, torch.int32)
    requests = inputs.block_table.shape[0]
    checks.check_index("workspace_starts", inputs.workspace_starts, requests)
    if inputs.seq_starts is not None:
        checks.check_index("seq_starts", inputs.seq_starts, requests)
    width = inputs.geometry.kv_lora_rank + inputs.geometry.rope_dim
    checks.check_matrix("workspace", inputs.workspace, torch.bfloat16, width)
    if inputs.workspace.shape[0] > 1 and inputs.workspace.stride(0) < width:
        raise ValueError(f"workspace rows must not overlap, found row stride {inputs.workspace.stride(0)}")
    checks.check_scale(fmt, inputs.scale)
    checks.check_devices(
        cache=inputs.cache,
        block_table=inputs.block_table,
        workspace_starts=inputs.workspace_starts,
        seq_starts=inputs.seq_starts,
        workspace=inputs.workspace,
        scale=inputs.scale,
    )


def _configuration(tokens: int) -> TokenBlock:
    """The table, measured on an H200: few tokens spread over the chip, many fill memory queues."""
    return TokenBlock(1, 2) if tokens <= FEW_TOKENS else TokenBlock(2, 1)


def _search_stride(requests: int) -> int:
    """The largest power of AT_ONCE below ``requests``: how far apart the starts are that are looked at first."""
    stride = 1
    while stride * AT_ONCE.value < requests:
        stride *= AT_ONCE.value
    return stride


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


def reference(fmt: CacheFormat, inputs: GatherInputs) -> Callable[[], None]:
    """The same in torch. Which rows come from where is settled here, so that what is returned never synchronises."""
    validate(fmt, inputs)
    blocks, block_size = inputs.cache.shape[:2]
    requests = len(inputs.block_table)
    token = torch.arange(len(inputs.workspace), device=inputs.cache.device)
    starts = inputs.workspace_starts[:requests].long()
    request = torch.searchsorted(starts, token, right=True) - 1
    token, request = token[request >= 0], request[request >= 0]
    position = token - starts[request]
    if inputs.seq_starts is not None:
        position = position + inputs.seq_starts[:requests].long()[request]
    inside = (position >= 0) & (position // block_size < inputs.block_table.shape[1])
    token, request, position = token[inside], request[inside], position[inside]
    page = inputs.block_table[request, position // block_size].long()
    inside = (page >= 0) & (page < blocks)
    token, row, page = token[inside], position[inside] % block_size, page[inside]

    def run() -> None:
        rows = load_rows(fmt, inputs.cache, page, row)
        inputs.workspace[token] = torch.cat(fmt.dequantize(rows, inputs.geometry, inputs.scale), dim=-1)

    return run


def make_inputs(fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator) -> GatherInputs:
    """A cache of quantized random tokens and requests of about equal length whose pages are all distinct."""
    geometry, requests = shape.geometry, min(shape.requests, shape.tokens)
    starts, pages_of = _requests(shape)
    pages, width = int(pages_of.sum()), int(pages_of.max())
    order = page_order(pages, shape, generator).to(torch.int32)
    table = torch.zeros(requests, width, dtype=torch.int32)
    table[torch.arange(width) < pages_of[:, None]] = order.cpu()
    scale = layer_scale(fmt, device)
    cached = Shape(pages * shape.block_size, 1, shape.block_size, geometry=geometry)
    rows = _random_rows(fmt, cached, device, generator, scale)
    workspace = torch.empty(
        shape.tokens, geometry.kv_lora_rank + geometry.rope_dim, dtype=torch.bfloat16, device=device
    )
    return GatherInputs(
        cache=cache_of(fmt, rows, shape.block_size, geometry),
        block_table=table.to(device),
        workspace_starts=starts[:-1].to(torch.int32).to(device),
        workspace=workspace,
        geometry=geometry,
        scale=scale,
    )


def _random_rows(
    fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator, scale: torch.Tensor | None
) -> torch.Tensor:
    """Quantized random tokens, uint8 [T, row_bytes]. On the meta device they have no values, and none are quantized."""
    if device.type == "meta":
        return torch.empty(shape.tokens, fmt.row_bytes(shape.geometry), dtype=torch.uint8, device=device)
    return fmt.quantize(*random_latents(shape, device, generator), scale)


def _requests(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each of the requests of about equal length starts, with the end appended, and how many pages it takes."""
    requests = min(shape.requests, shape.tokens)
    starts = torch.arange(requests + 1) * shape.tokens // requests
    return starts, -(-(starts[1:] - starts[:-1]) // shape.block_size)


def traffic(fmt: CacheFormat, shape: Shape) -> Traffic:
    """Rows, the pages' entries in the block table and the starts in, bf16 values out."""
    width = shape.geometry.kv_lora_rank + shape.geometry.rope_dim
    _, pages_of = _requests(shape)
    index_bytes = 4 * (int(pages_of.sum()) + len(pages_of))
    return Traffic(shape.tokens * fmt.row_bytes(shape.geometry) + index_bytes, shape.tokens * 2 * width)


OPERATIONS = (
    Operation(
        name="gather",
        summary="cp_gather_and_upconvert: paged cache rows into a bf16 workspace",
        make_inputs=make_inputs,
        outputs=lambda inputs: {"workspace": inputs.workspace},
        reference=reference,
        plan=plan,
        traffic=traffic,
        uses_requests=True,
        tuning=Tuning(plan, lambda shape, arch: TOKEN_BLOCKS),
    ),
)
