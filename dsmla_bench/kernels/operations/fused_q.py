"""fused_q: RoPE and quantization of an attention layer's queries, and of its indexer's, in one kernel.

    positions   int32 or int64 [T]: rows of the RoPE tables
    q_pe        bf16 [>= T, heads, rope_dim]: interleaved RoPE by cos_sin
    ql_nope     bf16 [>= T, heads, kv_lora_rank], with a quantized query only
    query       e4m3 [>= T, heads, kv_lora_rank + rope_dim]: (ql_nope, rotated q_pe) / q_scale, packed; or
                bf16 [>= T, heads, rope_dim]: rotated q_pe alone, where attention takes ql_nope as it is

With an indexer (``index_q`` is given), its queries in e4m3 under one power-of-two scale each (``indexer``); the scale
goes into the weight of its head:

    index_q            bf16 [>= T, index_heads, 128] → index_q_out e4m3 of that shape, RoPE by index_cos_sin
    index_weights      bf16 or fp32 [>= T, index_heads] → index_weights_out fp32:
                       weight · scale · index_softmax_scale · index_head_scale, multiplied in this order

T is the length of positions; T = 0 does nothing, and every row is computed, as no slot is asked for. Tokens and heads
may be strided. RoPE is fp32, the division by q_scale (fp32 [1], None for 1.0) a true one: nothing depends on an order,
and a kernel's bytes are the reference's. Semantics of vLLM 0.33's kernel of that name.

Which query a layer wants follows from its cache: a per-tensor fp8 cache is read with an fp8 query, every other format
with a bf16 one. So the operation covers the formats ``fp8`` and ``bf16``; the others would repeat bf16's rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.formats.numerics import bf16_from_fp32, e4m3_from_fp32
from dsmla_bench.kernels.kept import KeptLaunches
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div
from dsmla_bench.kernels.operations import rope
from dsmla_bench.kernels.operations.base import Operation
from dsmla_bench.kernels.operations.fused_q_inputs import (
    HEADS,
    VARIANTS,
    FusedQInputs,
    Indexer,
    make_inputs,
    outputs,
    traffic,
    validate,
)
from dsmla_bench.kernels.operations.fused_q_kernel import fused_q_kernel
from dsmla_bench.kernels.operations.indexer import quantize_index, rotate_index
from dsmla_bench.kernels.operations.steps import one_step
from dsmla_bench.kernels.operations.tuning import Tuning

__all__ = ["FusedQInputs", "fused_q"]


_TENSORS = (
    *("positions", "q_pe", "ql_nope", "cos_sin", "q_scale", "query"),
    *("index_q", "index_cos_sin", "index_weights", "index_q_out", "index_weights_out"),
)
_KEPT = KeptLaunches(*_TENSORS)
_tensors = operator.attrgetter(*_TENSORS)


def fused_q(inputs: FusedQInputs, *, check_values: bool = False) -> None:
    """Run the Triton kernel on these arguments.

    With ``check_values`` positions beyond a table are refused too, at the price of a synchronisation. Raises
    ValueError, before anything is launched, for what cannot be right.
    """
    others = (inputs.index_interleaved, inputs.index_softmax_scale, inputs.index_head_scale)
    checked = functools.partial(_check_values, inputs) if check_values else None
    _KEPT.launch(None, _tensors(inputs), others, functools.partial(_plan, inputs), checked)


def _check_values(inputs: FusedQInputs) -> None:
    """Raise ValueError for a position beyond a table."""
    rope.check_positions(inputs.positions, inputs.cos_sin)
    if inputs.index_cos_sin is not None:
        rope.check_positions(inputs.positions, inputs.index_cos_sin)


@dataclass(frozen=True)
class Configuration:
    """Heads of any tokens per program, powers of two, of the query and of the indexer's; warps per program."""

    query: int
    index: int
    num_warps: int


def _configuration(tokens: int, heads: int, *, quantized: bool) -> Configuration:
    """Few rows spread over the chip; many fill memory queues. A row of a bf16 query is a ninth of a quantized one."""
    if quantized and tokens * heads <= 256:
        return Configuration(query=1, index=4, num_warps=4)
    if tokens * heads <= 2048:
        return Configuration(query=4 if quantized else 8, index=8 if quantized else 4, num_warps=4)
    return Configuration(query=8 if quantized else 16, index=32, num_warps=4)


CANDIDATES = tuple(
    Configuration(*numbers)
    for numbers in (
        (1, 4, 4),
        (2, 4, 4),
        (4, 8, 4),
        (8, 4, 2),
        (8, 4, 4),
        (8, 16, 4),
        (8, 32, 4),
        (8, 32, 8),
        (16, 32, 4),
        (16, 32, 8),
        (32, 32, 8),
    )
)


def plan(
    fmt: CacheFormat, inputs: FusedQInputs, arch: int, configuration: Configuration | None = None
) -> Launch | None:
    """The launch for these arguments; None for zero tokens. Raises ValueError. Format and target change nothing.

    Without a configuration it is the table's.
    """
    return _plan(inputs, configuration)


def _plan(inputs: FusedQInputs, configuration: Configuration | None = None) -> Launch | None:
    validate(inputs)
    tokens, heads = len(inputs.positions), inputs.q_pe.shape[1]
    index_heads = inputs.index_q.shape[1] if inputs.index_q is not None else 0
    if tokens == 0:
        return None
    chosen = configuration or _configuration(tokens, heads, quantized=inputs.quantized)
    programs = ceil_div(tokens * heads, chosen.query) + ceil_div(tokens * index_heads, chosen.index)
    rope_dim = inputs.q_pe.shape[-1]
    return Launch(
        kernel=fused_q_kernel,
        grid=(programs,),
        args=(
            *(inputs.positions, inputs.q_pe, inputs.ql_nope if inputs.quantized else None, inputs.cos_sin),
            *(inputs.q_scale if inputs.quantized else None, _bytes(inputs.query)),
            *(inputs.index_q, inputs.index_cos_sin, inputs.index_weights),
            *(_bytes(inputs.index_q_out), inputs.index_weights_out, tokens),
            *_strides(inputs.q_pe, 2),
            *_strides(inputs.ql_nope, 2),
            *_strides(inputs.query, 2),
            *_strides(inputs.cos_sin, 1),
            *_strides(inputs.index_q, 2),
            *_strides(inputs.index_q_out, 2),
            *_strides(inputs.index_cos_sin, 1),
            *_strides(inputs.index_weights, 1),
            *_strides(inputs.index_weights_out, 1),
        ),
        constants={
            "HEADS": heads,
            "INDEX_HEADS": max(index_heads, 1),
            "NOPE_DIM": inputs.nope_dim,
            "ROPE_DIM": rope_dim,
            "NOPE_BLOCK": block_width(inputs.nope_dim),
            "ROPE_BLOCK": block_width(rope_dim),
            "QUANTIZED": inputs.quantized,
            "INTERLEAVED": inputs.index_interleaved,
            "SOFTMAX_SCALE": inputs.index_softmax_scale,
            "HEAD_SCALE": inputs.index_head_scale,
            "ROWS": chosen.query,
            "INDEX_ROWS": chosen.index,
        },
        num_warps=chosen.num_warps,
        names=_TENSORS,
    )


def _bytes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """e4m3 as bytes, as kernels take it; anything else as it is."""
    return tensor.view(torch.uint8) if tensor is not None and tensor.dtype == torch.float8_e4m3fn else tensor


def _strides(tensor: torch.Tensor | None, count: int) -> tuple[int, ...]:
    """The first strides; zeros without a tensor."""
    return tensor.stride()[:count] if tensor is not None else (0,) * count


def reference(fmt: CacheFormat, inputs: FusedQInputs) -> Callable[[], None]:
    """The same in torch."""
    validate(inputs)
    positions, indexer = inputs.positions.long(), inputs.indexer
    tokens, scale = len(positions), inputs.q_scale

    def run() -> None:
        query = rope.rotate(inputs.q_pe[:tokens].float(), inputs.cos_sin[positions][:, None], interleaved=True)
        if inputs.quantized and inputs.ql_nope is not None:
            query = torch.cat([inputs.ql_nope[:tokens].float(), query], dim=-1)
            codes = e4m3_from_fp32(query if scale is None else query / scale.expand_as(query))
            inputs.query[:tokens] = codes.view(torch.float8_e4m3fn)
        else:
            inputs.query[:tokens] = bf16_from_fp32(query)
        if indexer is not None:
            _index_reference(inputs, indexer, positions)

    return run


def _index_reference(inputs: FusedQInputs, indexer: Indexer, positions: torch.Tensor) -> None:
    """The indexer's part of the reference."""
    tokens, rows = len(positions), indexer.cos_sin[positions][:, None]
    values = rotate_index(indexer.index_q[:tokens].float(), rows, interleaved=inputs.index_interleaved)
    codes, scales = quantize_index(values)
    indexer.index_q_out[:tokens] = codes.view(torch.float8_e4m3fn)
    scaled = indexer.weights[:tokens].float() * scales[..., 0]
    indexer.weights_out[:tokens] = scaled * inputs.index_softmax_scale * inputs.index_head_scale


OPERATIONS = (
    Operation(
        name="fused_q",
        summary="RoPE and quantization of a layer's queries, and its indexer's",
        make_inputs=make_inputs,
        outputs=outputs,
        reference=reference,
        plan=plan,
        traffic=traffic,
        encodes=True,
        needs_e4m3=True,
        uses_pages=False,
        tokens=(1, 16, 128, 1024, 4096),
        axes={"heads": (HEADS,), "variant": VARIANTS},
        variants=VARIANTS,
        covers=lambda fmt: fmt.name in ("bf16", "fp8"),
        tolerance=functools.partial(one_step, scales={"index_q_out": "index_weights_out"}),
        tuning=Tuning(plan, lambda shape, arch: CANDIDATES),
    ),
)
