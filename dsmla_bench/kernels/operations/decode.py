"""decode: sparse MLA attention of new query tokens over chosen rows of the paged cache, in any format.

    q        bf16 [B, s_q, heads, kv_lora_rank + rope_dim], queries absorbed into the latent space, then rotated ones
    cache    uint8 [blocks, block_size, row_bytes], rows and pages may be padded (``pages``)
    indices  int32 [B, s_q, topk]: the slots (page · block_size + row) that each query token attends to
    sink     fp32 [heads] or None: a logit that takes part in every softmax and adds nothing to the output
    out      bf16 [B, s_q, heads, kv_lora_rank]
    lse      fp32 [B, s_q, heads], natural logarithm

With k the dequantized row [kv_c, k_pe] of a slot and v its kv_c, for every query token and head:

    logit = softmax_scale · q · k;  lse = log Σ exp(logit);  out = Σ exp(logit - lse) · v · 1 / (1 + exp(sink - lse))

A slot that is negative (-1 by convention) or beyond the cache takes no part, and nothing is read for it; a query token
without any other gets out 0 and lse +inf. ``softmax_scale`` is 1 / sqrt(kv_lora_rank + rope_dim) unless given; models
pass their own. Batches of zero do nothing. Semantics of FlashMLA's ``flash_mla_with_kvcache`` with indices, which has
lse as [B, heads, s_q], tells only -1 apart, and reads outside of the cache for others beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import triton

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.kept import KeptLaunches
from dsmla_bench.kernels.launch import Launch, block_width, ceil_div, device_arch
from dsmla_bench.kernels.operations.base import Operation, Outputs
from dsmla_bench.kernels.operations.decode_inputs import DecodeInputs, default_softmax_scale, make_inputs, traffic
from dsmla_bench.kernels.operations.decode_kernels import (
    COMBINED_COLUMNS,
    COMBINED_SPLITS,
    Configuration,
    attend_kernel,
    candidates,
    combine_kernel,
    configuration,
    rows_per_split,
)
from dsmla_bench.kernels.operations.pages import data_stride, load_rows
from dsmla_bench.kernels.operations.prefetch import LINE_BYTES
from dsmla_bench.kernels.operations.tuning import Tuning

REFERENCE_ROWS = 1 << 16
"""Rows that the reference dequantizes at once."""


_TENSORS = ("q", "cache", "indices", "scale", "sink", "out", "lse")
_KEPT = KeptLaunches(*_TENSORS)


def sparse_decode(
    fmt: CacheFormat,
    q: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    sink: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    geometry: Geometry = Geometry(),
    check_values: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of a decode by the Triton kernel; shapes in the module docstring.

    With ``check_values`` slots beyond the cache are refused, at the price of a synchronisation. Raises ValueError,
    before anything is launched, for what cannot be right.
    """
    if q.dim() != 4:
        _check_queries(q, geometry)
    out = torch.empty(*q.shape[:3], geometry.kv_lora_rank, dtype=torch.bfloat16, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)

    def planned() -> Launch | None:
        scaling = default_softmax_scale(geometry) if softmax_scale is None else softmax_scale
        inputs = DecodeInputs(q, cache, indices, out, lse, scaling, geometry, sink, scale)
        return plan(fmt, inputs, device_arch(cache.device))

    def checked() -> None:
        checks.check_slots("indices", indices, cache.shape[0] * cache.shape[1])

    tensors = (q, cache, indices, scale, sink)
    others = (softmax_scale, geometry.kv_lora_rank, geometry.rope_dim)
    _KEPT.launch(fmt, tensors, others, planned, checked if check_values else None, made=(out, lse))
    return out, lse


def plan(fmt: CacheFormat, inputs: DecodeInputs, arch: int, config: Configuration | None = None) -> Launch | None:
    """The launch for these arguments, and a second one where rows are split; None for no query. Raises ValueError.

    Without a configuration it is the table's.
    """
    validate(fmt, inputs)
    queries, heads, topk = inputs.lse[..., 0].numel(), inputs.q.shape[2], inputs.indices.shape[2]
    if queries == 0 or heads == 0:
        return None
    row_bytes = inputs.cache.shape[2] - fmt.suffix_bytes
    config = config or configuration(heads, queries, row_bytes, arch)
    split_rows = rows_per_split(config, queries, heads, topk)
    splits = max(1, ceil_div(topk, split_rows))
    rank, rope_dim = inputs.geometry.kv_lora_rank, inputs.geometry.rope_dim
    out, lse = inputs.out.view(1, queries, heads, rank), inputs.lse.view(1, queries, heads)
    if splits > 1:
        out = torch.empty(splits, queries, heads, rank, dtype=torch.float32, device=inputs.q.device)
        lse = torch.empty(splits, queries, heads, dtype=torch.float32, device=inputs.q.device)
    return Launch(
        kernel=attend_kernel,
        grid=(ceil_div(heads, config.block_heads) * splits * queries,),
        args=(
            inputs.q,
            inputs.cache,
            inputs.indices,
            inputs.scale if fmt.external_scale else None,
            inputs.sink if splits == 1 else None,
            out,
            lse,
            inputs.softmax_scale * math.log2(math.e),
            heads,
            topk,
            split_rows,
            splits,
            inputs.cache.shape[0] * inputs.cache.shape[1],
            inputs.q.flatten(0, 1).stride(0),
            inputs.q.stride(2),
            inputs.indices.flatten(0, 1).stride(0),
            inputs.cache.stride(0),
            data_stride(fmt, inputs.cache),
            *out.stride()[:3],
            *lse.stride()[:2],
        ),
        constants={
            "DECODE": fmt.decode,
            "COMPILED": isinstance(attend_kernel, triton.runtime.JITFunction),
            "BLOCK_SIZE": inputs.cache.shape[1],
            "SUFFIX_BYTES": fmt.suffix_bytes,
            "KV_LORA_RANK": rank,
            "ROPE_DIM": rope_dim,
            "NOPE_BLOCK": block_width(rank),
            "ROPE_BLOCK": block_width(rope_dim),
            "BLOCK_HEADS": config.block_heads,
            "BLOCK_ROWS": config.block_rows,
            "ROW_BYTES": row_bytes,
            "ROW_LINES": 1 << (ceil_div(row_bytes, LINE_BYTES.value) - 1).bit_length(),
            "STAGES": config.num_stages,
            "WHOLE": splits == 1,
        },
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        names=(*_TENSORS[:5], *(("parts", "part_lse") if splits > 1 else ("out", "lse"))),
        then=_combination(inputs, out, lse) if splits > 1 else None,
    )


def _combination(inputs: DecodeInputs, parts: torch.Tensor, part_lse: torch.Tensor) -> Launch:
    """The launch that makes one result of parts fp32 [splits, queries, heads, kv_lora_rank] and their lse in log2."""
    splits, queries, heads, rank = parts.shape
    return Launch(
        kernel=combine_kernel,
        grid=(queries * heads, ceil_div(rank, COMBINED_COLUMNS)),
        args=(parts, part_lse, inputs.sink, inputs.out, inputs.lse, heads, splits, queries),
        constants={
            "KV_LORA_RANK": rank,
            "BLOCK_COLUMNS": COMBINED_COLUMNS,
            "BLOCK_SPLITS": COMBINED_SPLITS,
        },
        names=("parts", "part_lse", "sink", "out", "lse"),
    )


def validate(fmt: CacheFormat, inputs: DecodeInputs) -> None:
    """Raise ValueError for shapes, types or addresses that cannot be right."""
    geometry = inputs.geometry
    checks.check_cache(fmt, inputs.cache, geometry)
    _check_queries(inputs.q, geometry)
    batch, queries, heads, _ = inputs.q.shape
    _check("indices", inputs.indices, torch.int32, (batch, queries, None))
    _check("out", inputs.out, torch.bfloat16, (batch, queries, heads, geometry.kv_lora_rank), contiguous=True)
    _check("lse", inputs.lse, torch.float32, (batch, queries, heads), contiguous=True)
    if inputs.sink is not None:
        _check("sink", inputs.sink, torch.float32, (heads,), contiguous=True)
    if inputs.cache.shape[0] * inputs.cache.shape[1] >= 2**31:
        raise ValueError(f"int32 indices reach 2^31 slots, found a cache of {list(inputs.cache.shape[:2])}")
    checks.check_scale(fmt, inputs.scale)
    tensors = {name: value for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)}
    checks.check_devices(**tensors)


def _check_queries(q: torch.Tensor, geometry: Geometry) -> None:
    _check("q", q, torch.bfloat16, (None, None, None, geometry.kv_lora_rank + geometry.rope_dim))


def _check(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int | None, ...], *, contiguous: bool = False
) -> None:
    """A tensor of this type and shape, None for any size; query tokens one stride apart, or contiguous on demand."""
    fits = tensor.dim() == len(shape) and all(
        want in (None, got) for want, got in zip(shape, tensor.shape, strict=True)
    )
    if tensor.dtype != dtype or not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must be {dtype} [{wanted}], found {tensor.dtype} {list(tensor.shape)}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, found strides {tensor.stride()}")
    if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous in its last dimension, found stride {tensor.stride(-1)}")
    if not contiguous and min(tensor.shape[:2]) > 1 and tensor.stride(0) != tensor.shape[1] * tensor.stride(1):
        raise ValueError(f"{name} must have its query tokens one stride apart, found strides {tensor.stride()}")


def reference(fmt: CacheFormat, inputs: DecodeInputs) -> Callable[[], None]:
    """The same in torch, in fp32 over the dequantized rows, a bounded number of rows at once; never synchronises."""
    validate(fmt, inputs)
    _, _, heads, width = inputs.q.shape
    topk, rank = inputs.indices.shape[2], inputs.geometry.kv_lora_rank
    q, indices = inputs.q.reshape(-1, heads, width), inputs.indices.reshape(-1, topk)
    out, lse = inputs.out.view(-1, heads, rank), inputs.lse.view(-1, heads)
    at_once = max(1, REFERENCE_ROWS // max(1, topk))

    def run() -> None:
        for first in range(0, len(q), at_once):
            some = slice(first, first + at_once)
            out[some], lse[some] = _attend(fmt, inputs, q[some].float(), indices[some].long())

    return run


def _attend(
    fmt: CacheFormat, inputs: DecodeInputs, q: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse in fp32 of q [n, heads, width] over slots [n, topk]."""
    blocks, block_size, _ = inputs.cache.shape
    valid = (slots >= 0) & (slots < blocks * block_size)
    slot = torch.where(valid, slots, 0).flatten()
    rows = load_rows(fmt, inputs.cache, slot // block_size, slot % block_size)
    kv_c, k_pe = fmt.dequantize(rows, inputs.geometry, inputs.scale)
    keys = torch.cat([kv_c, k_pe], dim=-1).float().unflatten(0, slots.shape)
    keys = keys.masked_fill(~valid[..., None], 0.0)
    logits = (q @ keys.transpose(1, 2) * inputs.softmax_scale).masked_fill(~valid[:, None], -math.inf)
    lse = logits.logsumexp(dim=-1)
    lse = torch.where(valid.any(dim=-1)[:, None], lse, math.inf)
    weights = (logits - lse[..., None]).exp()
    if inputs.sink is not None:
        weights = weights / (1.0 + (inputs.sink - lse).exp())[..., None]
    return weights @ keys[..., : inputs.geometry.kv_lora_rank], lse


def tolerance(found: Outputs, expected: Outputs) -> str | None:
    """FlashMLA's own tolerances of its sparse decode: out 1e-3 or 2.01 / 128, cosine 5e-6; lse 1e-6 or 8.01 / 65536."""
    return _differs("out", found["out"], expected["out"], 1e-3, 2.01 / 128, 5e-6) or _differs(
        "lse", found["lse"], expected["lse"], 1e-6, 8.01 / 65536, None
    )


def _differs(
    name: str, found: torch.Tensor, expected: torch.Tensor, absolute: float, relative: float, cosine: float | None
) -> str | None:
    """In words, what is beyond both the absolute and the relative tolerance, or the cosine's; None for nothing.

    The cosine difference is 1 - 2 Σ found · expected / Σ (found² + expected²). Values that are not finite must agree.
    """
    got, want = found.double(), expected.double()
    finite = got.isfinite() & want.isfinite()
    same = (got == want) | (got.isnan() & want.isnan())
    error = (got - want).abs()
    beyond = ~same & (~finite | ((error > absolute) & (error > relative * want.abs())))
    if count := int(beyond.sum()):
        place = tuple(int(index) for index in beyond.nonzero()[0])
        limits = f"{absolute:g} and {relative:.2g} of the value"
        return f"{count} values of {name} differ by more than {limits}, first {list(place)}: " + (
            f"{float(got[place]):g}, expected {float(want[place]):g}"
        )
    if cosine is None:
        return None
    got, want = torch.where(finite, got, 0.0), torch.where(finite, want, 0.0)
    norm = float((got * got + want * want).sum())
    difference = 1.0 - 2.0 * float((got * want).sum()) / norm if norm else 0.0
    return f"the cosine difference of {name} is {difference:.2g}, allowed {cosine:g}" if difference > cosine else None


OPERATIONS = (
    Operation(
        name="decode",
        summary="sparse MLA decode: attention of new tokens over chosen rows of the paged cache",
        make_inputs=make_inputs,
        outputs=lambda inputs: {"out": inputs.out, "lse": inputs.lse},
        reference=reference,
        plan=plan,
        traffic=traffic,
        tokens=(1, 8, 32, 128),
        page_orders=("shuffled",),
        times_reference=False,
        axes={"heads": (16, 64, 128), "topk": (2048,), "queries": (1,)},
        tolerance=tolerance,
        tuning=Tuning(plan, lambda shape, arch: candidates(shape.heads or 1, arch)),
    ),
)
