"""An operation in one file: read the RoPE part of scattered rows, in any format.

    cache   uint8 [blocks, block_size, row_bytes]
    slots   int64 [T]: token t lies in page slot // block_size, row slot % block_size; none is negative
    k_pe    bf16 [T, rope_dim]: what is written

To sweep it with the others, announce it from a package of yours:

    [project.entry-points."dsmla_bench.operations"]
    read_rope = "read_rope:OPERATIONS"
"""
# ruff: noqa: N803 - constexpr arguments are upper case by Triton's custom

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats import Geometry
from dsmla_bench.kernels.launch import Launch, block_width
from dsmla_bench.kernels.operations.base import Operation, Shape, Traffic, layer_scale, page_order, random_latents
from dsmla_bench.kernels.operations.pages import cache_of, data_stride, load_rows, token_pointers


@dataclass(frozen=True)
class ReadRopeInputs:
    """The arguments of a read; the module docstring has their shapes. ``scale`` is fp32 [1] or None for 1.0."""

    cache: torch.Tensor
    slots: torch.Tensor
    k_pe: torch.Tensor
    geometry: Geometry
    scale: torch.Tensor | None


@triton.jit
def read_rope_kernel(
    cache_ptr,
    slots_ptr,
    k_pe_ptr,
    scale_ptr,
    page_stride,
    data_stride,
    DECODE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SUFFIX_BYTES: tl.constexpr,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
):
    """Grid (T,): each program decodes one row and keeps its RoPE part."""
    token = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    slot = tl.load(slots_ptr + token)
    page, row = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    row_ptr, suffix_ptr = token_pointers(cache_ptr, page, row, page_stride, data_stride, BLOCK_SIZE, SUFFIX_BYTES)
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    _, k_pe = DECODE(row_ptr, suffix_ptr, slot >= 0, scale, KV_LORA_RANK, ROPE_DIM, NOPE_BLOCK, ROPE_BLOCK)
    rope = tl.arange(0, ROPE_BLOCK)
    tl.store(k_pe_ptr + (token * ROPE_DIM)[:, None] + rope, k_pe, (rope < ROPE_DIM)[None, :])


def plan(fmt, inputs, arch):
    """The launch for these inputs; None for zero tokens."""
    geometry, tokens = inputs.geometry, len(inputs.slots)
    if tokens == 0:
        return None
    scale = inputs.scale if fmt.external_scale else None
    strides = inputs.cache.stride(0), data_stride(fmt, inputs.cache)
    return Launch(
        kernel=read_rope_kernel,
        grid=(tokens,),
        args=(inputs.cache, inputs.slots, inputs.k_pe, scale, *strides),
        constants={
            "DECODE": fmt.decode,
            "BLOCK_SIZE": inputs.cache.shape[1],
            "SUFFIX_BYTES": fmt.suffix_bytes,
            "KV_LORA_RANK": geometry.kv_lora_rank,
            "ROPE_DIM": geometry.rope_dim,
            "NOPE_BLOCK": block_width(geometry.kv_lora_rank),
            "ROPE_BLOCK": block_width(geometry.rope_dim),
        },
        num_warps=1,
    )


def reference(fmt, inputs):
    """The same in torch."""
    page, row = inputs.slots // inputs.cache.shape[1], inputs.slots % inputs.cache.shape[1]

    def run():
        inputs.k_pe[:] = fmt.dequantize(load_rows(fmt, inputs.cache, page, row), inputs.geometry, inputs.scale)[1]

    return run


def make_inputs(fmt, shape, device, generator):
    """A cache of quantized random tokens, each of which is read once."""
    pages, geometry = -(-shape.tokens // shape.block_size), shape.geometry
    order = page_order(pages, shape, generator)
    rows = torch.arange(shape.block_size, device=order.device)
    slots = (order[:, None] * shape.block_size + rows).flatten()[: shape.tokens]
    scale = layer_scale(fmt, device)
    cached = Shape(pages * shape.block_size, geometry=geometry)
    cache = cache_of(fmt, fmt.quantize(*random_latents(cached, device, generator), scale), shape.block_size, geometry)
    k_pe = torch.empty(shape.tokens, geometry.rope_dim, dtype=torch.bfloat16, device=device)
    return ReadRopeInputs(cache, slots.to(device), k_pe, geometry, scale)


def traffic(fmt, shape):
    """Of a row only the RoPE field has to be read; 8-byte slots in, bf16 values out."""
    rope = sum(field.nbytes for field in fmt.fields(shape.geometry) if field.name == "RoPE")
    return Traffic(shape.tokens * (rope + 8), shape.tokens * 2 * shape.geometry.rope_dim)


OPERATIONS = (
    Operation(
        name="read_rope",
        summary="the RoPE part of scattered rows",
        make_inputs=make_inputs,
        outputs=lambda inputs: {"k_pe": inputs.k_pe},
        reference=reference,
        plan=plan,
        traffic=traffic,
    ),
)
