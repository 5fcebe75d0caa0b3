"""What an operation is: how its inputs are made, what it must do, and what it must move.

An operation is one file with its Triton kernel, its torch reference and one ``Operation`` in the module's
``OPERATIONS``. Providers, the correctness gate, the sweep and the reports work from that value, so that a new operation
touches one file. Inputs are a frozen dataclass of tensors; an operation writes into tensors that its inputs name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.launch import Launch


@dataclass(frozen=True)
class Shape:
    """The axes of one case.

    tokens      rows written or gathered
    requests    requests they belong to; operations without requests ignore it
    block_size  tokens per cache page
    shuffled    whether pages (and the slots in them) are visited in random order instead of ascending
    """

    tokens: int
    requests: int = 1
    block_size: int = 64
    shuffled: bool = False
    geometry: Geometry = Geometry()


@dataclass(frozen=True)
class Traffic:
    """Bytes that one launch must move through memory at least: every input read once, every output written once."""

    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class Operation:
    """An operation of the sweep. See the module docstring.

    make_inputs  (format, shape, device, generator) -> inputs, random and reproducible from the generator
    outputs      inputs -> the tensors that the operation writes, by name; the gate poisons and compares them
    reference    (format, inputs) -> a function without arguments that does the work in torch
    plan         (format, inputs, arch) -> the Triton launch, None when there is nothing to do
    traffic      (format, shape) -> Traffic
    encodes      whether it writes rows, and so uses the format's ``encode``
    """

    name: str
    summary: str
    make_inputs: Callable[[CacheFormat, Shape, torch.device, torch.Generator], Any]
    outputs: Callable[[Any], dict[str, torch.Tensor]]
    reference: Callable[[CacheFormat, Any], Callable[[], None]]
    plan: Callable[[CacheFormat, Any, int], Launch | None]
    traffic: Callable[[CacheFormat, Shape], Traffic]
    encodes: bool = False
    uses_requests: bool = False


def random_latents(shape: Shape, device: torch.device, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """kv_c [T, kv_lora_rank] and k_pe [T, rope_dim] in bf16, standard normal, as two slices of one projection.

    On the meta device they have no values, and none are drawn.
    """
    geometry = shape.geometry
    size = (shape.tokens, geometry.kv_lora_rank + geometry.rope_dim)
    if device.type == "meta":
        values = torch.empty(size, dtype=torch.bfloat16, device=device)
    else:
        values = torch.randn(size, generator=generator, device=generator.device).to(torch.bfloat16).to(device)
    return values[:, : geometry.kv_lora_rank], values[:, geometry.kv_lora_rank :]


def page_order(pages: int, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """The pages of a cache in the order in which they are visited, int64 [pages] on the generator's device."""
    if shape.shuffled:
        return torch.randperm(pages, generator=generator, device=generator.device)
    return torch.arange(pages, device=generator.device)


def layer_scale(fmt: CacheFormat, device: torch.device) -> torch.Tensor | None:
    """A calibrated scale for formats that keep one outside the cache, fp32 [1]; None for the others.

    0.3 is no power of two, so that a product in place of a division shows in the bytes.
    """
    return torch.tensor([0.3], device=device) if fmt.external_scale else None
