"""write (``concat_and_cache``): put a batch of tokens into the paged cache, in any format.

    kv_c          bf16 [>= T, kv_lora_rank], rows may be strided (a slice of a wider projection)
    k_pe          bf16 [>= T, rope_dim], likewise
    cache         uint8 [blocks, block_size, row_bytes], rows and pages may be padded (``pages``)
    slot_mapping  int32 or int64 [T]: token t goes to page slot // block_size, row slot % block_size; negative: nowhere

T is the length of slot_mapping: kv_c and k_pe may be longer (padding of captured graphs). T = 0 does nothing.
Semantics of vLLM's ``concat_and_cache_mla``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.formats.numerics import within
from dsmla_bench.kernels.kept import KeptLaunches
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div, device_arch
from dsmla_bench.kernels.operations.base import Operation, Shape, Traffic, layer_scale, random_latents, slots_in_order
from dsmla_bench.kernels.operations.pages import data_stride, new_cache, page_and_row, store_rows, token_pointers
from dsmla_bench.kernels.operations.tuning import TOKEN_BLOCKS, TokenBlock, Tuning


@dataclass(frozen=True)
class WriteInputs:
    """The arguments of a write; the module docstring has their shapes. ``scale`` is fp32 [1] or None for 1.0."""

    kv_c: torch.Tensor
    k_pe: torch.Tensor
    cache: torch.Tensor
    slot_mapping: torch.Tensor
    scale: torch.Tensor | None = None

    @property
    def geometry(self) -> Geometry:
        """The widths of kv_c and k_pe."""
        return Geometry(self.kv_c.shape[-1], self.k_pe.shape[-1])


_TENSORS = ("kv_c", "k_pe", "cache", "slot_mapping", "scale")
_KEPT = KeptLaunches(*_TENSORS)


def concat_and_cache(
    fmt: CacheFormat,
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    check_values: bool = False,
) -> None:
    """Write a batch of tokens with the Triton kernel; shapes in the module docstring.

    With ``check_values`` slots beyond the cache are refused too, at the price of a synchronisation. Raises ValueError,
    before anything is launched, for what cannot be right.
    """

    def planned() -> Launch | None:
        return plan(fmt, WriteInputs(kv_c, k_pe, cache, slot_mapping, scale), device_arch(cache.device))

    def checked() -> None:
        checks.check_slots("slot_mapping", slot_mapping, cache.shape[0] * cache.shape[1])

    tensors = (kv_c, k_pe, cache, slot_mapping, scale)
    _KEPT.launch(fmt, tensors, (), planned, checked if check_values else None)


def plan(fmt: CacheFormat, inputs: WriteInputs, arch: int, configuration: TokenBlock | None = None) -> Launch | None:
    """The launch for these arguments on compute capability ``arch`` / 10; None for zero tokens. Raises ValueError.

    Without a configuration it is the table's.
    """
    validate(fmt, inputs)
    geometry, tokens = inputs.geometry, inputs.slot_mapping.shape[0]
    if tokens == 0:
        return None
    chosen = configuration or _configuration(tokens)
    return Launch(
        kernel=concat_and_cache_kernel,
        grid=(ceil_div(tokens, chosen.block_tokens),),
        args=(
            inputs.kv_c,
            inputs.k_pe,
            inputs.cache,
            inputs.slot_mapping,
            inputs.scale if fmt.external_scale else None,
            tokens,
            inputs.kv_c.stride(0),
            inputs.k_pe.stride(0),
            inputs.cache.stride(0),
            data_stride(fmt, inputs.cache),
        ),
        constants={
            "ENCODE": fmt.encode,
            "ARCH": arch,
            "BLOCK_SIZE": inputs.cache.shape[1],
            "SUFFIX_BYTES": fmt.suffix_bytes,
            "KV_LORA_RANK": geometry.kv_lora_rank,
            "ROPE_DIM": geometry.rope_dim,
            "NOPE_BLOCK": block_width(geometry.kv_lora_rank),
            "ROPE_BLOCK": block_width(geometry.rope_dim),
            "BLOCK_TOKENS": chosen.block_tokens,
        },
        num_warps=chosen.num_warps,
        names=_TENSORS,
    )


def validate(fmt: CacheFormat, inputs: WriteInputs) -> None:
    """Raise ValueError for shapes, types or addresses that cannot be right."""
    checks.check_index("slot_mapping", inputs.slot_mapping)
    tokens = inputs.slot_mapping.shape[0]
    checks.check_rows("kv_c", inputs.kv_c, tokens)
    checks.check_rows("k_pe", inputs.k_pe, tokens)
    checks.check_cache(fmt, inputs.cache, inputs.geometry)
    checks.check_scale(fmt, inputs.scale)
    checks.check_devices(
        kv_c=inputs.kv_c, k_pe=inputs.k_pe, cache=inputs.cache, slot_mapping=inputs.slot_mapping, scale=inputs.scale
    )


def _configuration(tokens: int) -> TokenBlock:
    """The table, measured on an H200: few tokens spread over the chip, many fill memory queues."""
    if tokens <= 1024:
        return TokenBlock(1, 2)
    return TokenBlock(4, 4) if tokens <= 16384 else TokenBlock(2, 1)


@triton.jit(do_not_specialize=["num_tokens"])
def concat_and_cache_kernel(
    kv_c_ptr,
    k_pe_ptr,
    cache_ptr,
    slot_mapping_ptr,
    scale_ptr,
    num_tokens,
    kv_c_stride,
    k_pe_stride,
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
    BLOCK_TOKENS: tl.constexpr,
):
    """Grid (ceil(T / BLOCK_TOKENS),): each program encodes BLOCK_TOKENS tokens into their rows."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    exists = token < num_tokens
    slot = tl.load(slot_mapping_ptr + token, exists, other=-1).to(tl.int64)
    nope = tl.arange(0, NOPE_BLOCK)
    rope = tl.arange(0, ROPE_BLOCK)
    # Latents of tokens without a slot are read too, so that no load waits for the slots.
    kv_c = tl.load(kv_c_ptr + (token * kv_c_stride)[:, None] + nope, within(exists, nope, KV_LORA_RANK), other=0.0)
    k_pe = tl.load(k_pe_ptr + (token * k_pe_stride)[:, None] + rope, within(exists, rope, ROPE_DIM), other=0.0)
    mask = slot >= 0
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr)
    page, row = page_and_row(slot, BLOCK_SIZE)
    row_ptr, suffix_ptr = token_pointers(cache_ptr, page, row, page_stride, data_stride, BLOCK_SIZE, SUFFIX_BYTES)
    ENCODE(kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK, ROPE_DIM, ARCH)


def reference(fmt: CacheFormat, inputs: WriteInputs) -> Callable[[], None]:
    """The same in torch. Which rows are written is settled here, so that the returned function never synchronises."""
    validate(fmt, inputs)
    tokens, block_size = len(inputs.slot_mapping), inputs.cache.shape[1]
    written = (inputs.slot_mapping >= 0).nonzero().flatten()
    slots = inputs.slot_mapping[written].long()
    page, row = slots // block_size, slots % block_size

    def run() -> None:
        rows = fmt.quantize(inputs.kv_c[:tokens], inputs.k_pe[:tokens], inputs.scale)
        store_rows(fmt, inputs.cache, page, row, rows[written])

    return run


def make_inputs(fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator) -> WriteInputs:
    """Random tokens and a cache that just holds them; every slot is used at most once."""
    kv_c, k_pe = random_latents(shape, device, generator)
    pages, slots = slots_in_order(shape, generator)
    cache = new_cache(fmt, pages, shape.block_size, device, shape.geometry)
    return WriteInputs(kv_c, k_pe, cache, slots.to(device), layer_scale(fmt, device))


def traffic(fmt: CacheFormat, shape: Shape) -> Traffic:
    """bf16 values and 8-byte slots in, rows out."""
    width = shape.geometry.kv_lora_rank + shape.geometry.rope_dim
    return Traffic(shape.tokens * (2 * width + 8), shape.tokens * fmt.row_bytes(shape.geometry))


OPERATIONS = (
    Operation(
        name="write",
        summary="concat_and_cache: tokens into the paged cache",
        make_inputs=make_inputs,
        outputs=lambda inputs: {"cache": inputs.cache},
        reference=reference,
        plan=plan,
        traffic=traffic,
        encodes=True,
        tuning=Tuning(plan, lambda shape, arch: TOKEN_BLOCKS),
    ),
)
