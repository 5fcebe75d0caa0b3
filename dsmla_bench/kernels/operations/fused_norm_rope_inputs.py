"""The arguments of ``fused_norm_rope`` (which has their shapes): what is refused, random ones, and their traffic.

Random ones have the widths of DeepSeek-V3.2. What is read and written follows from the variant: with or without the
indexer, with or without kv_c and k_pe materialised.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.operations import norms, rope
from dsmla_bench.kernels.operations.base import (
    Outputs,
    Shape,
    Traffic,
    layer_scale,
    random_latents,
    random_values,
    slots_in_order,
)
from dsmla_bench.kernels.operations.indexer import INDEX_DIM, INDEX_GEOMETRY, INDEX_ROPE_DIM, INDEXER_CACHE
from dsmla_bench.kernels.operations.pages import fields_of, new_cache

Q_LORA_RANK = 1536
TOPK = 2048
POSITIONS = 8192
VARIANTS = ("indexer", "no-indexer", "indexer+kv", "no-indexer+kv")
"""With or without the indexer; ``+kv`` also materialises kv_c and k_pe."""


@dataclass(frozen=True)
class Indexer:
    """The indexer's arguments, all there; ``fused_norm_rope`` has their shapes."""

    index_k: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor
    cos_sin: torch.Tensor
    cache: torch.Tensor
    slot_mapping: torch.Tensor
    topk_indices: torch.Tensor


@dataclass(frozen=True)
class FusedNormRopeInputs:
    """The arguments of the operation; ``fused_norm_rope`` has their shapes. ``scale`` is fp32 [1] or None for 1.0."""

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


def outputs(inputs: FusedNormRopeInputs) -> Outputs:
    """What is written, caches field by field so that each is compared in its own type."""
    cache = fields_of(inputs.fmt, inputs.cache, inputs.geometry)
    found = {f"cache {name}": view for name, view in cache.items()}
    if inputs.index_cache is not None:
        index_cache = fields_of(INDEXER_CACHE, inputs.index_cache, INDEX_GEOMETRY)
        found |= {f"index_cache {name}": view for name, view in index_cache.items()}
    names = ("q_c_out", "kv_c_out", "k_pe_out", "topk_indices")
    return found | {name: tensor for name in names if (tensor := getattr(inputs, name)) is not None}


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


def make_inputs(
    fmt: CacheFormat, shape: Shape, device: torch.device, generator: torch.Generator
) -> FusedNormRopeInputs:
    """Random tokens of DeepSeek-V3.2's widths and caches that just hold them; every slot is used at most once."""
    geometry, tokens = shape.geometry, shape.tokens
    variant = shape.variant or VARIANTS[0]
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r} of fused_norm_rope; available: {', '.join(VARIANTS)}")
    kv_c, k_pe = random_latents(shape, device, generator)
    pages, slots = slots_in_order(shape, generator)
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
        slot_mapping=slots.to(device),
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
