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

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.formats.numerics import bf16_from_fp32, e4m3_from_fp32
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div
from dsmla_bench.kernels.operations import rope
from dsmla_bench.kernels.operations.base import Operation, Outputs, Shape, Traffic, random_values
from dsmla_bench.kernels.operations.fused_q_kernel import fused_q_kernel
from dsmla_bench.kernels.operations.indexer import (
    INDEX_DIM,
    INDEX_ROPE_DIM,
    quantize_index,
    rotate_index,
)
from dsmla_bench.kernels.operations.norms import WEIGHT_TYPES
from dsmla_bench.kernels.operations.steps import one_step
from dsmla_bench.kernels.operations.tuning import Tuning

HEADS = 128
INDEX_HEADS = 64
POSITIONS = 8192
VARIANTS = ("indexer", "no-indexer")


@dataclass(frozen=True)
class Indexer:
    """The indexer's arguments, all there; the module docstring has their shapes."""

    index_q: torch.Tensor
    cos_sin: torch.Tensor
    weights: torch.Tensor
    index_q_out: torch.Tensor
    weights_out: torch.Tensor


@dataclass(frozen=True)
class FusedQInputs:
    """The arguments of the operation; the module docstring has their shapes. ``query``'s type says which it is."""

    positions: torch.Tensor
    q_pe: torch.Tensor
    cos_sin: torch.Tensor
    query: torch.Tensor
    ql_nope: torch.Tensor | None = None
    q_scale: torch.Tensor | None = None
    index_q: torch.Tensor | None = None
    index_cos_sin: torch.Tensor | None = None
    index_weights: torch.Tensor | None = None
    index_q_out: torch.Tensor | None = None
    index_weights_out: torch.Tensor | None = None
    index_interleaved: bool = False
    index_softmax_scale: float = INDEX_DIM**-0.5
    index_head_scale: float = INDEX_HEADS**-0.5

    @property
    def quantized(self) -> bool:
        """Whether the query is one packed e4m3 tensor."""
        return self.query.dtype == torch.float8_e4m3fn

    @property
    def nope_dim(self) -> int:
        """The width of ql_nope; 0 where it is left alone."""
        return self.ql_nope.shape[-1] if self.ql_nope is not None and self.quantized else 0

    @property
    def indexer(self) -> Indexer | None:
        """The indexer's arguments; None without an indexer. Raises ValueError when some are missing."""
        names = ("index_q", "index_cos_sin", "index_weights", "index_q_out", "index_weights_out")
        given = {name: tensor for name in names if (tensor := getattr(self, name)) is not None}
        if missing := [name for name in names if name not in given] if given else []:
            raise ValueError(f"an indexer needs {', '.join(names)}; {', '.join(missing)} is None")
        return Indexer(*given.values()) if given else None


def fused_q(inputs: FusedQInputs, *, check_values: bool = False) -> None:
    """Run the Triton kernel on these arguments.

    With ``check_values`` positions beyond a table are refused too, at the price of a synchronisation. Raises
    ValueError, before anything is launched, for what cannot be right.
    """
    launch = _plan(inputs)
    if check_values:
        rope.check_positions(inputs.positions, inputs.cos_sin)
        if inputs.index_cos_sin is not None:
            rope.check_positions(inputs.positions, inputs.index_cos_sin)
    if launch is not None:
        launch.run()


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
    )


def _bytes(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """e4m3 as bytes, as kernels take it; anything else as it is."""
    return tensor.view(torch.uint8) if tensor is not None and tensor.dtype == torch.float8_e4m3fn else tensor


def _strides(tensor: torch.Tensor | None, count: int) -> tuple[int, ...]:
    """The first strides; zeros without a tensor."""
    return tensor.stride()[:count] if tensor is not None else (0,) * count


def validate(inputs: FusedQInputs) -> None:
    """Raise ValueError for shapes or types that cannot be right."""
    checks.check_index("positions", inputs.positions)
    tokens, bf16 = len(inputs.positions), torch.bfloat16
    _check_heads("q_pe", inputs.q_pe, tokens, (None, None), bf16)
    heads, rope_dim = inputs.q_pe.shape[1:]
    if heads < 1 or rope_dim < 2 or rope_dim % 2:
        raise ValueError(f"q_pe must have a head or more of an even width, found {list(inputs.q_pe.shape)}")
    rope.check_table("cos_sin", inputs.cos_sin, rope_dim)
    if inputs.quantized:
        if inputs.ql_nope is None:
            raise ValueError("a quantized query needs ql_nope, found None; for RoPE alone give a torch.bfloat16 query")
        _check_heads("ql_nope", inputs.ql_nope, tokens, (heads, None), bf16)
        _check_heads("query", inputs.query, tokens, (heads, inputs.nope_dim + rope_dim), torch.float8_e4m3fn)
    else:
        _check_heads("query", inputs.query, tokens, (heads, rope_dim), bf16)
    _check_scale(inputs.q_scale)
    if (indexer := inputs.indexer) is not None:
        _validate_indexer(indexer, tokens)
    checks.check_devices(**{name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)})


def _check_scale(scale: torch.Tensor | None) -> None:
    if scale is not None and (scale.dtype != torch.float32 or scale.numel() != 1):
        raise ValueError(f"q_scale must be one torch.float32 value, found {scale.dtype} {list(scale.shape)}")


def _validate_indexer(indexer: Indexer, tokens: int) -> None:
    """The same for the indexer's arguments."""
    _check_heads("index_q", indexer.index_q, tokens, (None, INDEX_DIM), torch.bfloat16)
    heads, weights = indexer.index_q.shape[1], indexer.weights
    if heads < 1:
        raise ValueError(f"index_q must have a head or more, found {list(indexer.index_q.shape)}")
    rope.check_table("index_cos_sin", indexer.cos_sin, INDEX_ROPE_DIM)
    _check_heads("index_q_out", indexer.index_q_out, tokens, (heads, INDEX_DIM), torch.float8_e4m3fn)
    dtype = weights.dtype if weights.dtype in WEIGHT_TYPES else torch.float32
    checks.check_rows("index_weights", weights, tokens, heads, dtype)
    checks.check_output("index_weights_out", indexer.weights_out, tokens, heads, torch.float32)


def _check_heads(
    name: str, tensor: torch.Tensor, tokens: int, sizes: tuple[int | None, int | None], dtype: torch.dtype
) -> None:
    """[>= tokens, heads, width] of ``dtype``, heads one after another or further apart, their values contiguous."""
    shape, wanted = tensor.shape, [size if size is not None else "any" for size in sizes]
    fits = tensor.dim() == 3 and all(size in (None, found) for size, found in zip(sizes, shape[1:], strict=True))
    if tensor.dtype != dtype or not fits or len(tensor) < tokens:
        expected = f"{dtype} [>= {tokens}, {wanted[0]}, {wanted[1]}]"
        raise ValueError(f"{name} must be {expected}, found {tensor.dtype} {list(shape)}")
    if tensor.stride(2) != 1 or (shape[1] > 1 and tensor.stride(1) < shape[2]):
        raise ValueError(f"{name} must hold a head's values one after another, found strides {tensor.stride()}")


def outputs(inputs: FusedQInputs) -> Outputs:
    """What is written."""
    names = ("query", "index_q_out", "index_weights_out")
    return {name: tensor for name in names if (tensor := getattr(inputs, name)) is not None}


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


def make_inputs(fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator) -> FusedQInputs:
    """Random queries of DeepSeek-V3.2's widths: quantized for a per-tensor fp8 cache, bf16 for others."""
    geometry, tokens, heads = shape.geometry, shape.tokens, shape.heads or HEADS
    variant = shape.variant or VARIANTS[0]
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r} of fused_q; available: {', '.join(VARIANTS)}")
    quantized = _quantizes(fmt)
    width = geometry.rope_dim + (geometry.kv_lora_rank if quantized else 0)
    dtype = torch.float8_e4m3fn if quantized else torch.bfloat16
    positions = torch.randint(POSITIONS, (tokens,), generator=generator, device=generator.device)
    inputs = FusedQInputs(
        positions=positions.to(device),
        q_pe=random_values((tokens, heads, geometry.rope_dim), device, generator),
        cos_sin=rope.random_table(POSITIONS, geometry.rope_dim, device),
        query=torch.empty(tokens, heads, width, dtype=dtype, device=device),
        ql_nope=random_values((tokens, heads, geometry.kv_lora_rank), device, generator) if quantized else None,
        q_scale=torch.tensor([0.37], device=device) if quantized else None,
    )
    return inputs if variant == "no-indexer" else _with_indexer(inputs, generator)


def _quantizes(fmt: CacheFormat) -> bool:
    return fmt.name == "fp8"


def _with_indexer(inputs: FusedQInputs, generator: torch.Generator) -> FusedQInputs:
    """The same with random queries of an indexer."""
    device, size = inputs.q_pe.device, (len(inputs.positions), INDEX_HEADS, INDEX_DIM)
    return dataclasses.replace(
        inputs,
        index_q=random_values(size, device, generator),
        index_cos_sin=rope.random_table(POSITIONS, INDEX_ROPE_DIM, device),
        index_weights=random_values(size[:2], device, generator),
        index_q_out=torch.empty(size, dtype=torch.float8_e4m3fn, device=device),
        index_weights_out=torch.empty(size[:2], device=device),
    )


def traffic(fmt: CacheFormat, shape: Shape) -> Traffic:
    """Queries, positions and table rows in, queries out; weights of the indexer in bf16 in and fp32 out."""
    geometry, heads = shape.geometry, shape.heads or HEADS
    width = geometry.rope_dim + (geometry.kv_lora_rank if _quantizes(fmt) else 0)
    read = 8 + 2 * geometry.rope_dim + 2 * heads * width
    written = heads * width * (1 if _quantizes(fmt) else 2)
    if (shape.variant or VARIANTS[0]) == "indexer":
        read += 2 * INDEX_ROPE_DIM + 2 * INDEX_HEADS * (INDEX_DIM + 1)
        written += INDEX_HEADS * (INDEX_DIM + 4)
    return Traffic(shape.tokens * read, shape.tokens * written)


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
