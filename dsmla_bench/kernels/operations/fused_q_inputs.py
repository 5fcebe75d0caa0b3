"""The arguments of ``fused_q`` (which has their shapes): what is refused, random ones, and their traffic.

Random ones have the widths of DeepSeek-V3.2, and the query's type is the one that the format's cache is read with.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.operations import rope
from dsmla_bench.kernels.operations.base import Outputs, Shape, Traffic, random_values
from dsmla_bench.kernels.operations.indexer import INDEX_DIM, INDEX_ROPE_DIM
from dsmla_bench.kernels.operations.norms import WEIGHT_TYPES

HEADS = 128
INDEX_HEADS = 64
POSITIONS = 8192
VARIANTS = ("indexer", "no-indexer")


@dataclass(frozen=True)
class Indexer:
    """The indexer's arguments, all there; ``fused_q`` has their shapes."""

    index_q: torch.Tensor
    cos_sin: torch.Tensor
    weights: torch.Tensor
    index_q_out: torch.Tensor
    weights_out: torch.Tensor


@dataclass(frozen=True)
class FusedQInputs:
    """The arguments of the operation; ``fused_q`` has their shapes. ``query``'s type says which it is."""

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


def outputs(inputs: FusedQInputs) -> Outputs:
    """What is written."""
    names = ("query", "index_q_out", "index_weights_out")
    return {name: tensor for name in names if (tensor := getattr(inputs, name)) is not None}


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
