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

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.formats.numerics import bf16_from_fp32
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div, device_arch
from dsmla_bench.kernels.operations import norms, rope
from dsmla_bench.kernels.operations.base import (
    Operation,
    Outputs,
    Shape,
    Traffic,
    layer_scale,
    page_order,
    random_latents,
    random_values,
)
from dsmla_bench.kernels.operations.fused_norm_rope_kernel import fused_norm_rope_kernel
from dsmla_bench.kernels.operations.indexer import (
    INDEX_DIM,
    INDEX_GEOMETRY,
    INDEX_ROPE_DIM,
    INDEXER_CACHE,
    rotate_index,
)
from dsmla_bench.kernels.operations.pages import data_stride, fields_of, new_cache, store_rows
from dsmla_bench.kernels.operations.steps import one_step
from dsmla_bench.kernels.operations.tuning import Tuning

Q_LORA_RANK = 1536
TOPK = 2048
POSITIONS = 8192
VARIANTS = ("indexer", "no-indexer", "indexer+kv", "no-indexer+kv")
"""With or without the indexer; ``+kv`` also materialises kv_c and k_pe."""


@dataclass(frozen=True)
class Indexer:
    """The indexer's arguments, all there; the module docstring has their shapes."""

    index_k: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    cos_sin: torch.Tensor
    cache: torch.Tensor
    slot_mapping: torch.Tensor
    topk_indices: torch.Tensor


@dataclass(frozen=True)
class FusedNormRopeInputs:
    """The arguments of the operation; the module docstring has their shapes. ``scale`` is fp32 [1] or None for 1.0."""

    fmt: CacheFormat
    positions: torch.Tensor
    q_c: torch.Tensor
    q_weight: torch.Tensor
    q_c_out: torch.Tensor
    kv_c: torch.Tensor
    kv_weight: torch.Tensor
    k_pe: torch.Tensor
    cos_sin: torch.Tensor
    cache: torch.Tensor
    slot_mapping: torch.Tensor
    scale: torch.Tensor | None = None
    kv_c_out: torch.Tensor | None = None
    k_pe_out: torch.Tensor | None = None
    index_k: torch.Tensor | None = None
    index_weight: torch.Tensor | None = None
    index_bias: torch.Tensor | None = None
    index_cos_sin: torch.Tensor | None = None
    index_cache: torch.Tensor | None = None
    index_slot_mapping: torch.Tensor | None = None
    topk_indices: torch.Tensor | None = None
    index_interleaved: bool = False
    rms_eps: float = 1e-6
    index_eps: float = 1e-6

    @property
    def geometry(self) -> Geometry:
        """The widths of kv_c and k_pe."""
        return Geometry(self.kv_c.shape[-1], self.k_pe.shape[-1])

    @property
    def indexer(self) -> Indexer | None:
        """The indexer's arguments; None without an indexer. Raises ValueError when some are missing."""
        names = ("index_k", "index_weight", "index_bias", "index_cos_sin", "index_cache", "topk_indices")
        given = {name: tensor for name in names if (tensor := getattr(self, name)) is not None}
        if not given and self.index_slot_mapping is None:
            return None
        if missing := [name for name in names if name not in given]:
            raise ValueError(f"an indexer needs {', '.join(names)}; {', '.join(missing)} is None")
        slots = self.slot_mapping if self.index_slot_mapping is None else self.index_slot_mapping
        index_k, weight, bias, cos_sin, cache, topk_indices = given.values()
        return Indexer(index_k, weight, bias, cos_sin, cache, slots, topk_indices)


def fused_norm_rope(inputs: FusedNormRopeInputs, *, check_values: bool = False) -> None:
    """Run the Triton kernel on these arguments.

    With ``check_values`` slots beyond a cache and positions beyond a table are refused too, at the price of a
    synchronisation. Raises ValueError, before anything is launched, for what cannot be right.
    """
    launch = plan(inputs.fmt, inputs, device_arch(inputs.cache.device))
    if check_values:
        _check_values(inputs)
    if launch is not None:
        launch.run()


def _check_values(inputs: FusedNormRopeInputs) -> None:
    """Raise ValueError for a slot beyond its cache, or a position that is used and lies beyond its table."""
    tokens = len(inputs.positions)
    cached = inputs.slot_mapping[:tokens] >= 0
    rope.check_positions(inputs.positions[cached] if inputs.k_pe_out is None else inputs.positions, inputs.cos_sin)
    checks.check_slots(inputs.slot_mapping, inputs.cache.shape[0] * inputs.cache.shape[1])
    if (indexer := inputs.indexer) is not None:
        rope.check_positions(inputs.positions[cached & (indexer.slot_mapping[:tokens] >= 0)], indexer.cos_sin)
        checks.check_slots(indexer.slot_mapping, indexer.cache.shape[0] * indexer.cache.shape[1])


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
    )


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


def validate(fmt: CacheFormat, inputs: FusedNormRopeInputs) -> None:
    """Raise ValueError for shapes, types or addresses that cannot be right."""
    checks.check_index("positions", inputs.positions)
    tokens = len(inputs.positions)
    checks.check_index("slot_mapping", inputs.slot_mapping, tokens)
    for name in ("q_c", "kv_c", "k_pe"):
        checks.check_rows(name, getattr(inputs, name), tokens)
    checks.check_cache(fmt, inputs.cache, inputs.geometry)
    checks.check_scale(fmt, inputs.scale)
    norms.check_weight("q_weight", inputs.q_weight, inputs.q_c.shape[1])
    norms.check_weight("kv_weight", inputs.kv_weight, inputs.geometry.kv_lora_rank)
    if inputs.geometry.rope_dim % 2:
        raise ValueError(f"k_pe must have an even width to be rotated in pairs, found {inputs.geometry.rope_dim}")
    rope.check_table("cos_sin", inputs.cos_sin, inputs.geometry.rope_dim)
    if (inputs.kv_c_out is None) != (inputs.k_pe_out is None):
        raise ValueError("kv_c_out and k_pe_out must be given together or not at all; one of them is None")
    for name in ("q_c", "kv_c", "k_pe"):
        out = getattr(inputs, f"{name}_out")
        if out is not None:
            checks.check_output(f"{name}_out", out, tokens, getattr(inputs, name).shape[1])
    if (indexer := inputs.indexer) is not None:
        _validate_indexer(indexer, tokens)
    checks.check_devices(**{name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)})


def _validate_indexer(indexer: Indexer, tokens: int) -> None:
    """The same for the indexer's arguments."""
    checks.check_rows("index_k", indexer.index_k, tokens, INDEX_DIM)
    norms.check_weight("index_weight", indexer.weight, INDEX_DIM)
    norms.check_weight("index_bias", indexer.bias, INDEX_DIM)
    rope.check_table("index_cos_sin", indexer.cos_sin, INDEX_ROPE_DIM)
    checks.check_cache(INDEXER_CACHE, indexer.cache, INDEX_GEOMETRY)
    checks.check_index("index_slot_mapping", indexer.slot_mapping, tokens)
    checks.check_output("topk_indices", indexer.topk_indices, tokens, indexer.topk_indices.shape[-1], torch.int32)


def outputs(inputs: FusedNormRopeInputs) -> Outputs:
    """What is written, caches field by field so that each is compared in its own type."""
    cache = fields_of(inputs.fmt, inputs.cache, inputs.geometry)
    found = {f"cache {name}": view for name, view in cache.items()}
    if inputs.index_cache is not None:
        index_cache = fields_of(INDEXER_CACHE, inputs.index_cache, INDEX_GEOMETRY)
        found |= {f"index_cache {name}": view for name, view in index_cache.items()}
    names = ("q_c_out", "kv_c_out", "k_pe_out", "topk_indices")
    return found | {name: tensor for name in names if (tensor := getattr(inputs, name)) is not None}


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


def make_inputs(
    fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator
) -> FusedNormRopeInputs:
    """Random tokens of DeepSeek-V3.2's widths and caches that just hold them; every slot is used at most once."""
    geometry, tokens = shape.geometry, shape.tokens
    variant = shape.variant or VARIANTS[0]
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r} of fused_norm_rope; available: {', '.join(VARIANTS)}")
    kv_c, k_pe = random_latents(shape, device, generator)
    pages = -(-tokens // shape.block_size)
    order = page_order(pages, shape, generator)
    slots = (order[:, None] * shape.block_size + torch.arange(shape.block_size, device=order.device)).flatten()
    table = rope.random_table(POSITIONS, geometry.rope_dim, device)
    positions = torch.randint(POSITIONS, (tokens,), generator=generator, device=generator.device)
    kept = variant.endswith("+kv")
    inputs = FusedNormRopeInputs(
        fmt=fmt,
        positions=positions.to(device),
        q_c=random_values((tokens, Q_LORA_RANK), device, generator),
        q_weight=random_values((Q_LORA_RANK,), device, generator),
        q_c_out=_empty(tokens, Q_LORA_RANK, device),
        kv_c=kv_c,
        kv_weight=random_values((geometry.kv_lora_rank,), device, generator),
        k_pe=k_pe,
        cos_sin=table,
        cache=new_cache(fmt, pages, shape.block_size, device, geometry),
        slot_mapping=slots[:tokens].to(device),
        scale=layer_scale(fmt, device),
        kv_c_out=_empty(tokens, geometry.kv_lora_rank, device) if kept else None,
        k_pe_out=_empty(tokens, geometry.rope_dim, device) if kept else None,
    )
    return inputs if variant.startswith("no-indexer") else _with_indexer(inputs, shape, generator)


def _empty(tokens: int, width: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(tokens, width, dtype=dtype, device=device)


def _with_indexer(inputs: FusedNormRopeInputs, shape: Shape, generator: torch.Generator) -> FusedNormRopeInputs:
    """The same with random arguments of an indexer, fp32 weights as DeepSeek-V3.2 keeps them."""
    device, blocks = inputs.q_c.device, len(inputs.cache)
    return dataclasses.replace(
        inputs,
        index_k=random_values((shape.tokens, INDEX_DIM), device, generator),
        index_weight=random_values((INDEX_DIM,), device, generator).float(),
        index_bias=random_values((INDEX_DIM,), device, generator).float(),
        index_cos_sin=rope.random_table(POSITIONS, INDEX_ROPE_DIM, device),
        index_cache=new_cache(INDEXER_CACHE, blocks, shape.block_size, device, INDEX_GEOMETRY),
        topk_indices=_empty(shape.tokens, TOPK, device, torch.int32),
    )


def traffic(fmt: CacheFormat, shape: Shape) -> Traffic:
    """A token's inputs, position, slot and table rows, and the weights once; its outputs and its rows in the caches."""
    geometry, variant = shape.geometry, shape.variant or VARIANTS[0]
    latent_bytes = 2 * (geometry.kv_lora_rank + geometry.rope_dim)
    read = 16 + 2 * Q_LORA_RANK + latent_bytes + 2 * geometry.rope_dim
    written = 2 * Q_LORA_RANK + fmt.row_bytes(geometry)
    weights = 2 * (Q_LORA_RANK + geometry.kv_lora_rank)
    if not variant.startswith("no-indexer"):
        read += 2 * INDEX_DIM + 2 * INDEX_ROPE_DIM
        written += INDEXER_CACHE.row_bytes(INDEX_GEOMETRY) + 4 * TOPK
        weights += 8 * INDEX_DIM
    if variant.endswith("+kv"):
        written += latent_bytes
    return Traffic(shape.tokens * read + weights, shape.tokens * written)


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
