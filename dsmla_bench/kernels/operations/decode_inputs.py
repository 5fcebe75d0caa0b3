"""The arguments of ``decode`` (``operations.decode`` has their shapes), random ones for the sweep, and their traffic.

Every query token of the sweep attends to random rows of a context of its own, CONTEXT times as long as its top-k, as
far as POOL_ROWS cached rows go; beyond, contexts are shorter, and at last shared. ``traffic`` counts a row once,
however many query tokens read it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.operations.base import Shape, Traffic, layer_scale, page_order, random_latents, random_values
from dsmla_bench.kernels.operations.pages import cache_of

CONTEXT = 4
"""Cached rows per query token of the sweep, as a multiple of the rows that it attends to."""
POOL_ROWS = 1 << 20
"""Cached rows of the sweep at most; beyond, query tokens share them."""
LATENTS = 0.1
"""Standard deviation of the cached values, as in FlashMLA's tests, which its tolerances belong to; queries have the
inverse, so that logits have 1."""
MADE_AT_ONCE = 1 << 16
"""Rows that are quantized at once, so that making a cache takes little memory beside it."""


@dataclass(frozen=True)
class DecodeInputs:
    """The arguments of a decode; the module docstring has their shapes. ``scale`` is fp32 [1] or None for 1.0."""

    q: torch.Tensor
    cache: torch.Tensor
    indices: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    softmax_scale: float
    geometry: Geometry = Geometry()
    sink: torch.Tensor | None = None
    scale: torch.Tensor | None = None


def default_softmax_scale(geometry: Geometry) -> float:
    """1 / sqrt(width of q)."""
    return float((geometry.kv_lora_rank + geometry.rope_dim) ** -0.5)


def make_inputs(fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator) -> DecodeInputs:
    """Queries and a cache of quantized random tokens; a query token's rows are random ones of its own, all distinct."""
    geometry, (batch, queries, heads, _) = shape.geometry, _sizes(shape)
    contexts, context = _contexts(shape)
    pages = -(-contexts * context // shape.block_size)
    scale = layer_scale(fmt, device)
    cached = Shape(pages * shape.block_size, geometry=geometry)
    width = geometry.kv_lora_rank + geometry.rope_dim
    return DecodeInputs(
        q=_random_queries((batch, queries, heads, width), device, generator),
        cache=cache_of(fmt, _random_rows(fmt, cached, device, generator, scale), shape.block_size, geometry),
        indices=_random_slots(shape, pages, device, generator),
        out=torch.empty(batch, queries, heads, geometry.kv_lora_rank, dtype=torch.bfloat16, device=device),
        lse=torch.empty(batch, queries, heads, dtype=torch.float32, device=device),
        softmax_scale=default_softmax_scale(geometry),
        geometry=geometry,
        scale=scale,
    )


def _random_queries(size: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """bf16 of standard deviation 1 / LATENTS, so that logits are of order 1. On the meta device without values."""
    values = random_values(size, device, generator)
    return values if device.type == "meta" else values / LATENTS


def _random_rows(
    fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator, scale: torch.Tensor | None
) -> torch.Tensor:
    """Quantized random tokens, uint8 [T, row_bytes]. On the meta device they have no values, and none are quantized."""
    if device.type == "meta":
        return torch.empty(shape.tokens, fmt.row_bytes(shape.geometry), dtype=torch.uint8, device=device)
    rows = []
    for count in _chunks(shape.tokens):
        kv_c, k_pe = random_latents(dataclasses.replace(shape, tokens=count), device, generator)
        rows.append(fmt.quantize(kv_c * LATENTS, k_pe * LATENTS, scale))
    return torch.cat(rows)


def _sizes(shape: Shape) -> tuple[int, int, int, int]:
    """Batch, query tokens per request, heads, and rows per query token."""
    assert shape.heads is not None, "a decode has the axes heads, topk and queries"
    assert shape.topk is not None, "a decode has the axes heads, topk and queries"
    assert shape.queries is not None, "a decode has the axes heads, topk and queries"
    return shape.tokens, shape.queries, shape.heads, shape.topk


def _contexts(shape: Shape) -> tuple[int, int]:
    """How many runs of cached rows the query tokens choose from, and how long one is."""
    batch, queries, _, topk = _sizes(shape)
    context = max(topk, min(CONTEXT * topk, POOL_ROWS // (batch * queries)))
    return max(1, min(batch * queries, POOL_ROWS // context)), context


def _chunks(rows: int) -> list[int]:
    """``rows`` in parts of at most MADE_AT_ONCE, so that making them takes little memory."""
    return [min(MADE_AT_ONCE, rows - first) for first in range(0, rows, MADE_AT_ONCE)]


def _random_slots(shape: Shape, pages: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """int32 [B, s_q, topk]: distinct positions of each query token's context, in pages of a given or a random order.

    Positions ascend where pages are ordered, and follow each other at random where they are shuffled.
    """
    batch, queries, _, topk = _sizes(shape)
    contexts, context = _contexts(shape)
    if device.type == "meta":
        return torch.empty(batch, queries, topk, dtype=torch.int32, device=device)
    order = page_order(pages, shape, generator)
    found = []
    for query in range(batch * queries):
        position = torch.randperm(context, generator=generator, device=generator.device)[:topk]
        position = position if shape.shuffled else position.sort().values
        position = position + query % contexts * context
        found.append(order[position // shape.block_size] * shape.block_size + position % shape.block_size)
    return torch.stack(found).view(batch, queries, topk).to(torch.int32).to(device)


def traffic(fmt: CacheFormat, shape: Shape) -> Traffic:
    """Distinct rows, queries and indices in, outputs and lse out; both products of every row, head and query token."""
    batch, queries, heads, topk = _sizes(shape)
    tokens, width = batch * queries, shape.geometry.kv_lora_rank + shape.geometry.rope_dim
    rows = min(tokens, _contexts(shape)[0]) * topk
    return Traffic(
        bytes_read=rows * fmt.row_bytes(shape.geometry) + tokens * (2 * heads * width + 4 * topk),
        bytes_written=tokens * heads * (2 * shape.geometry.kv_lora_rank + 4),
        flops=2 * tokens * heads * topk * (width + shape.geometry.kv_lora_rank),
    )
