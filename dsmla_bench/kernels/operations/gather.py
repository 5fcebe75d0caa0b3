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

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.kept import KeptLaunches
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div, device_arch
from dsmla_bench.kernels.operations.base import Operation, Shape, Traffic, layer_scale, page_order, random_latents
from dsmla_bench.kernels.operations.gather_kernel import AT_ONCE, gather_kernel
from dsmla_bench.kernels.operations.pages import cache_of, data_stride, load_rows
from dsmla_bench.kernels.operations.tuning import TOKEN_BLOCKS, TokenBlock, Tuning

FEW_TOKENS = 1024
"""Rows up to which latency is all that counts, and reading more than is needed costs nothing."""


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


_TENSORS = ("cache", "block_table", "workspace_starts", "seq_starts", "workspace", "scale")
_KEPT = KeptLaunches(*_TENSORS)


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

    def planned() -> Launch | None:
        inputs = GatherInputs(cache, block_table, workspace_starts, workspace, geometry, seq_starts, scale)
        return plan(fmt, inputs, device_arch(cache.device))

    def checked() -> None:
        checks.check_starts(block_table, workspace_starts, seq_starts, len(workspace), *cache.shape[:2])

    tensors = (cache, block_table, workspace_starts, seq_starts, workspace, scale)
    widths = (geometry.kv_lora_rank, geometry.rope_dim)
    _KEPT.launch(fmt, tensors, widths, planned, checked if check_values else None)


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
        names=_TENSORS,
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
    checks.check_output("workspace", inputs.workspace, 0, width)
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
