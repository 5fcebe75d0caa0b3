"""What an operation is: how its inputs are made, what it must do, and what it must move.

An operation is one file with its Triton kernel, its torch reference and one ``Operation`` in the module's
``OPERATIONS``; where that gets long, kernels and inputs lie in files beside it. Providers, the correctness gate, the
sweep and the reports work from that value, so that a new operation touches no other file. Inputs are a frozen dataclass
of tensors; an operation writes into tensors that its inputs name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations.tuning import Tuning


@dataclass(frozen=True)
class Shape:
    """The axes of one case.

    tokens      rows written or gathered
    requests    requests they belong to; operations without requests ignore it
    block_size  tokens per cache page
    shuffled    whether pages (and the slots in them) are visited in random order instead of ascending
    heads, topk, queries, variant   of the operations that have such an axis: see ``rows.Case``
    """

    tokens: int
    requests: int = 1
    block_size: int = 64
    shuffled: bool = False
    geometry: Geometry = Geometry()
    heads: int | None = None
    topk: int | None = None
    queries: int | None = None
    variant: str | None = None


@dataclass(frozen=True)
class Traffic:
    """What one launch must do at least.

    bytes_read, bytes_written   through memory: every input once, every output once
    flops                       operations of its matrix products, a multiplication and an addition each; 0 for none
    """

    bytes_read: int
    bytes_written: int
    flops: int = 0


Outputs = Mapping[str, torch.Tensor]
DEFAULT_TOKENS = (1, 16, 128, 1024, 8192, 65536)
PAGE_ORDERS = ("ordered", "shuffled")


@dataclass(frozen=True)
class Operation:
    """An operation of the sweep. See the module docstring.

    make_inputs  (format, shape, device, generator) -> inputs, random and reproducible from the generator
    outputs      inputs -> the tensors that the operation writes, by name; the gate poisons and compares them
    reference    (format, inputs) -> a function without arguments that does the work in torch
    plan         (format, inputs, arch) -> the Triton launch, None when there is nothing to do
    traffic      (format, shape) -> Traffic
    encodes      whether it writes rows, and so uses the format's ``encode``
    needs_e4m3   whether its kernel converts to e4m3 in every format
    uses_requests  whether its tokens belong to requests
    uses_pages   whether it touches a paged cache: block size and page order are axes of it
    tokens, page_orders   the sizes and orders of pages that a sweep measures unless told otherwise
    times_reference  whether the torch reference is worth timing too, and not the definition alone
    axes         further axes of it (``rows.OWN_AXES``) and the values that a sweep measures unless told otherwise
    variants     every value of its axis ``variant``, those of ``axes`` first; () where it has no such axis
    covers       whether a format is worth a row; one that changes nothing for the operation is not
    tolerance    (found, expected), outputs by name -> in words why they differ more than the operation allows, None
                 when they do not. Without it every byte must be equal
    tuning       the launch configurations that ``dsmla-bench tune`` measures beside the one that ``plan`` takes
    """

    name: str
    summary: str
    make_inputs: Callable[[CacheFormat, Shape, torch.device, torch.Generator], Any]
    outputs: Callable[[Any], Outputs]
    reference: Callable[[CacheFormat, Any], Callable[[], None]]
    plan: Callable[[CacheFormat, Any, int], Launch | None]
    traffic: Callable[[CacheFormat, Shape], Traffic]
    encodes: bool = False
    needs_e4m3: bool = False
    uses_requests: bool = False
    uses_pages: bool = True
    tokens: tuple[int, ...] = DEFAULT_TOKENS
    page_orders: tuple[str, ...] = PAGE_ORDERS
    times_reference: bool = True
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    covers: Callable[[CacheFormat], bool] = lambda fmt: True
    tolerance: Callable[[Outputs, Outputs], str | None] | None = None
    tuning: Tuning | None = None


def random_values(size: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """bf16 of any size, standard normal. On the meta device they have no values, and none are drawn."""
    if device.type == "meta":
        return torch.empty(size, dtype=torch.bfloat16, device=device)
    return torch.randn(size, generator=generator, device=generator.device).to(torch.bfloat16).to(device)


def random_latents(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """kv_c [T, kv_lora_rank] and k_pe [T, rope_dim] in bf16, standard normal, as two slices of one projection."""
    geometry = shape.geometry
    values = random_values((shape.tokens, geometry.kv_lora_rank + geometry.rope_dim), device, generator)
    return values[:, : geometry.kv_lora_rank], values[:, geometry.kv_lora_rank :]


def page_order(pages: int, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """The pages of a cache in the order in which they are visited, int64 [pages] on the generator's device."""
    if shape.shuffled:
        return torch.randperm(pages, generator=generator, device=generator.device)
    return torch.arange(pages, device=generator.device)


def slots_in_order(shape: Shape, generator: torch.Generator) -> tuple[int, torch.Tensor]:
    """How many pages just hold the tokens, and the slot of each, int64 [tokens] on the generator's device.

    Tokens fill one page after another, in the order of ``page_order``.
    """
    pages = -(-shape.tokens // shape.block_size)
    order = page_order(pages, shape, generator)
    slots = order[:, None] * shape.block_size + torch.arange(shape.block_size, device=order.device)
    return pages, slots.flatten()[: shape.tokens]


def layer_scale(fmt: CacheFormat, device: torch.device) -> torch.Tensor | None:
    """A calibrated scale for formats that keep one outside the cache, fp32 [1]; None for the others.

    0.3 is no power of two, so that a product in place of a division shows in the bytes.
    """
    return torch.tensor([0.3], device=device) if fmt.external_scale else None
