"""fused_norm_rope: norms, RoPE and the cache write between the first projections of an attention layer, in one kernel.

    positions      int32 or int64 [T]: rows of the RoPE tables
    q_c            bf16 [>= T, q_lora_rank]     → q_c_out bf16, RMSNorm by q_weight, every row
    kv_c, k_pe     bf16 [>= T, kv_lora_rank], [>= T, rope_dim] → the token's row in cache, in any format: kv_c after
                   RMSNorm by kv_weight, k_pe after interleaved RoPE by cos_sin
    slot_mapping   int32 or int64 [>= T]: where in the cache, as in ``write``; negative: nowhere
    kv_c_out, k_pe_out   bf16, the same two materialised for every row; both or neither

With an indexer (``index_k`` is given):

    index_k        bf16 [>= T, 128]             → its row in index_cache (``indexer``): LayerNorm by index_weight and
                   index_bias, RoPE by index_cos_sin, e4m3
    index_slot_mapping   int32 or int64 [>= T], slot_mapping where None: a row whose slot is negative in either is
                   skipped
    topk_indices   int32 [>= T, topk]: -1 in every row

T is the length of positions; T = 0 does nothing. Inputs may be slices of one projection. Norms and RoPE are fp32, and
the cache is quantized from their fp32 results: rounding those to bf16 first, as a norm kernel followed by a write
does, gives other bytes. Weights are fp32 or bf16 and so are tables (``norms``, ``rope``). Positions of rows that
neither reach a cache nor are materialised are not used, so padding may hold anything there. Semantics of vLLM 0.33's
kernel of that name.

The order of a norm's sum is the hardware's. All else is as the reference does it, so a kernel's bytes may differ from
it by one step in few places, or not at all where no sum is involved: ``steps.one_step`` judges them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.formats.numerics import bf16_from_fp32
from dsmla_bench.kernels.kept import KeptLaunches
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div, device_arch
from dsmla_bench.kernels.operations import norms, rope
from dsmla_bench.kernels.operations.base import Operation
from dsmla_bench.kernels.operations.fused_norm_rope_inputs import (
    VARIANTS,
    FusedNormRopeInputs,
    make_inputs,
    outputs,
    traffic,
    validate,
)
from dsmla_bench.kernels.operations.fused_norm_rope_kernel import fused_norm_rope_kernel
from dsmla_bench.kernels.operations.indexer import INDEX_DIM, INDEXER_CACHE, rotate_index
from dsmla_bench.kernels.operations.pages import data_stride, store_rows
from dsmla_bench.kernels.operations.steps import one_step
from dsmla_bench.kernels.operations.tuning import Tuning

__all__ = ["FusedNormRopeInputs", "fused_norm_rope"]


_TENSORS = (
    *("positions", "slot_mapping", "q_c", "q_weight", "q_c_out", "kv_c", "kv_weight", "k_pe", "cos_sin", "kv_c_out"),
    *("k_pe_out", "cache", "scale", "index_k", "index_weight", "index_bias", "index_cos_sin", "index_cache"),
    *("index_slot_mapping", "topk_indices"),
)
_KEPT = KeptLaunches(*_TENSORS)
_tensors = operator.attrgetter(*_TENSORS)


def fused_norm_rope(inputs: FusedNormRopeInputs, *, check_values: bool = False) -> None:
    """Run the Triton kernel on these arguments.

    With ``check_values`` slots beyond a cache and positions beyond a table are refused too, at the price of a
    synchronisation. Raises ValueError, before anything is launched, for what cannot be right.
    """

    def planned() -> Launch | None:
        return plan(inputs.fmt, inputs, device_arch(inputs.cache.device))

    others = (inputs.index_interleaved, inputs.rms_eps, inputs.index_eps)
    checked = functools.partial(_check_values, inputs) if check_values else None
    _KEPT.launch(inputs.fmt, _tensors(inputs), others, planned, checked)


def _check_values(inputs: FusedNormRopeInputs) -> None:
    """Raise ValueError for a slot beyond its cache, or a position that is used and lies beyond its table."""
    tokens = len(inputs.positions)
    cached = inputs.slot_mapping[:tokens] >= 0
    rope.check_positions(inputs.positions[cached] if inputs.k_pe_out is None else inputs.positions, inputs.cos_sin)
    checks.check_slots("slot_mapping", inputs.slot_mapping, inputs.cache.shape[0] * inputs.cache.shape[1])
    if (indexer := inputs.indexer) is not None:
        rope.check_positions(inputs.positions[cached & (indexer.slot_mapping[:tokens] >= 0)], indexer.cos_sin)
        name = "slot_mapping" if inputs.index_slot_mapping is None else "index_slot_mapping"
        checks.check_slots(name, indexer.slot_mapping, indexer.cache.shape[0] * indexer.cache.shape[1])


@dataclass(frozen=True)
class Configuration:
    """Tokens per program of each of the kernel's four jobs, powers of two, and warps per program."""

    kv: int
    q: int
    index: int
    topk: int
    num_warps: int


def _configuration(tokens: int, *, indexer: bool, divides: bool) -> Configuration:
    """Few tokens: a program for every job of a token. Many: enough bytes in flight per program, small jobs grouped.

    In between all programs are on the chip at once, and small ones are done sooner. A division of every value by an
    external scale (``divides``) is worth more warps where nothing else is longer.
    """
    if tokens <= 256:
        return Configuration(kv=1, q=1, index=4, topk=1, num_warps=8 if divides and not indexer and tokens <= 8 else 4)
    if tokens <= 2048:
        return Configuration(kv=2 if indexer else 1, q=1, index=4, topk=4, num_warps=2)
    return Configuration(kv=4, q=2, index=16, topk=4, num_warps=4)


CANDIDATES = tuple(
    Configuration(*numbers)
    for numbers in (
        (1, 1, 1, 1, 4),
        (1, 1, 4, 1, 2),
        (1, 1, 4, 1, 4),
        (1, 1, 4, 1, 8),
        (1, 1, 4, 4, 2),
        (2, 1, 4, 4, 2),
        (2, 1, 8, 2, 4),
        (2, 2, 8, 2, 4),
        (4, 1, 16, 4, 4),
        (4, 2, 16, 4, 2),
        (4, 2, 16, 4, 4),
        (4, 2, 16, 4, 8),
        (8, 4, 16, 8, 8),
    )
)


def plan(
    fmt: CacheFormat, inputs: FusedNormRopeInputs, arch: int, configuration: Configuration | None = None
) -> Launch | None:
    """The launch for these arguments on compute capability ``arch`` / 10; None for zero tokens. Raises ValueError.

    Without a configuration it is the table's.
    """
    validate(fmt, inputs)
    tokens, indexer = len(inputs.positions), inputs.indexer
    if tokens == 0:
        return None
    chosen = configuration or _configuration(tokens, indexer=indexer is not None, divides=fmt.external_scale)
    unit = max(chosen.kv, chosen.q, chosen.index, chosen.topk)
    programs = unit // chosen.kv + unit // chosen.q
    if indexer is not None:
        programs += unit // chosen.index + unit // chosen.topk
    return Launch(
        kernel=fused_norm_rope_kernel,
        grid=(ceil_div(tokens, unit) * programs,),
        args=_arguments(fmt, inputs),
        constants={
            "ENCODE": fmt.encode,
            "ARCH": arch,
            **_widths(fmt, inputs),
            "RMS_EPS": inputs.rms_eps,
            "INDEX_EPS": inputs.index_eps,
            "INTERLEAVED": inputs.index_interleaved,
            "UNIT": unit,
            "PROGRAMS": programs,
            "KV_TOKENS": chosen.kv,
            "Q_TOKENS": chosen.q,
            "INDEX_TOKENS": chosen.index,
            "TOPK_TOKENS": chosen.topk,
        },
        num_warps=chosen.num_warps,
        names=_names(inputs),
    )


def _names(inputs: FusedNormRopeInputs) -> tuple[str, ...]:
    """Which tensor each pointer is of: an indexer without slots of its own takes the cache's."""
    if inputs.index_slot_mapping is not None:
        return _TENSORS
    return tuple("slot_mapping" if name == "index_slot_mapping" else name for name in _TENSORS)


def _arguments(fmt: CacheFormat, inputs: FusedNormRopeInputs) -> tuple[torch.Tensor | int | None, ...]:
    """The kernel's run-time arguments: tensors, the number of tokens, strides."""
    indexer = inputs.indexer
    return (
        *(inputs.positions, inputs.slot_mapping, inputs.q_c, inputs.q_weight, inputs.q_c_out),
        *(inputs.kv_c, inputs.kv_weight, inputs.k_pe, inputs.cos_sin if inputs.geometry.rope_dim else None),
        *(inputs.kv_c_out, inputs.k_pe_out, inputs.cache, inputs.scale if fmt.external_scale else None),
        *(inputs.index_k, inputs.index_weight, inputs.index_bias, inputs.index_cos_sin, inputs.index_cache),
        *(indexer.slot_mapping if indexer is not None else None, inputs.topk_indices, len(inputs.positions)),
        *(_row_stride(tensor) for tensor in (inputs.q_c, inputs.q_c_out, inputs.kv_c, inputs.k_pe)),
        *(_row_stride(tensor) for tensor in (inputs.cos_sin, inputs.kv_c_out, inputs.k_pe_out)),
        *(inputs.cache.stride(0), data_stride(fmt, inputs.cache)),
        *(_row_stride(tensor) for tensor in (inputs.index_k, inputs.index_cos_sin, inputs.index_cache)),
        _row_stride(inputs.topk_indices),
    )


def _widths(fmt: CacheFormat, inputs: FusedNormRopeInputs) -> dict[str, int]:
    """The widths of pages and rows, and of the blocks of registers that hold the rows."""
    geometry, q_lora_rank = inputs.geometry, inputs.q_c.shape[-1]
    topk = inputs.topk_indices.shape[-1] if inputs.topk_indices is not None else 1
    return {
        "BLOCK_SIZE": inputs.cache.shape[1],
        "SUFFIX_BYTES": fmt.suffix_bytes,
        "Q_LORA_RANK": q_lora_rank,
        "KV_LORA_RANK": geometry.kv_lora_rank,
        "ROPE_DIM": geometry.rope_dim,
        "INDEX_BLOCK_SIZE": inputs.index_cache.shape[1] if inputs.index_cache is not None else 1,
        "TOPK": topk,
        "Q_BLOCK": block_width(q_lora_rank),
        "NOPE_BLOCK": block_width(geometry.kv_lora_rank),
        "ROPE_BLOCK": block_width(geometry.rope_dim),
        "TOPK_BLOCK": block_width(topk),
    }


def _row_stride(tensor: torch.Tensor | None) -> int:
    return tensor.stride(0) if tensor is not None else 0


def reference(fmt: CacheFormat, inputs: FusedNormRopeInputs) -> Callable[[], None]:
    """The same in torch. Which rows are written is settled here, so that the returned function never synchronises."""
    validate(fmt, inputs)
    tokens = len(inputs.positions)
    cached = inputs.slot_mapping[:tokens] >= 0
    used = cached if inputs.k_pe_out is None else torch.ones_like(cached)
    positions = torch.where(used, inputs.positions, 0).long()
    rows = cached.nonzero().flatten()
    page, row = _places(inputs.slot_mapping[rows], inputs.cache)
    write_index = _index_reference(inputs, cached)

    def run() -> None:
        inputs.q_c_out[:tokens] = bf16_from_fp32(norms.rms_norm(inputs.q_c[:tokens], inputs.q_weight, inputs.rms_eps))
        kv_c = norms.rms_norm(inputs.kv_c[:tokens], inputs.kv_weight, inputs.rms_eps)
        k_pe = rope.rotate(inputs.k_pe[:tokens].float(), inputs.cos_sin[positions], interleaved=True)
        if inputs.kv_c_out is not None and inputs.k_pe_out is not None:
            inputs.kv_c_out[:tokens], inputs.k_pe_out[:tokens] = bf16_from_fp32(kv_c), bf16_from_fp32(k_pe)
        store_rows(fmt, inputs.cache, page, row, fmt.quantize(kv_c, k_pe, inputs.scale)[rows])
        write_index()

    return run


def _places(slots: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Page and row of slots that are not negative."""
    return slots.long() // cache.shape[1], slots.long() % cache.shape[1]


def _index_reference(inputs: FusedNormRopeInputs, cached: torch.Tensor) -> Callable[[], None]:
    """The indexer's part of the reference; nothing without an indexer."""
    indexer = inputs.indexer
    if indexer is None:
        return lambda: None
    rows = (cached & (indexer.slot_mapping[: len(cached)] >= 0)).nonzero().flatten()
    positions = inputs.positions[rows].long()
    page, row = _places(indexer.slot_mapping[rows], indexer.cache)

    def run() -> None:
        keys = norms.layer_norm(indexer.index_k[rows], indexer.weight, indexer.bias, inputs.index_eps)
        keys = rotate_index(keys, indexer.cos_sin[positions], interleaved=inputs.index_interleaved)
        store_rows(INDEXER_CACHE, indexer.cache, page, row, INDEXER_CACHE.quantize(keys, keys[:, INDEX_DIM:], None))
        indexer.topk_indices[: len(cached)] = -1

    return run


OPERATIONS = (
    Operation(
        name="fused_norm_rope",
        summary="norms, RoPE and the cache write of a layer's projections, and its indexer's",
        make_inputs=make_inputs,
        outputs=outputs,
        reference=reference,
        plan=plan,
        traffic=traffic,
        encodes=True,
        needs_e4m3=True,
        page_orders=("ordered",),
        axes={"variant": VARIANTS[:2]},
        variants=VARIANTS,
        tolerance=functools.partial(
            one_step, scales={"cache NoPE": "cache scales", "index_cache key": "index_cache scale"}
        ),
        tuning=Tuning(plan, lambda shape, arch: CANDIDATES),
    ),
)
