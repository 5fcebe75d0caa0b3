"""What a KV-cache format is: a layout as data, and four functions that write and read it.

Everything else (write, gather, the correctness gate, traffic, reports) works from a ``CacheFormat``, so a format is one
file that builds one and lists it in its module's ``FORMATS``.

A row holds what one token leaves in the cache: the latent ``kv_c`` (NoPE, ``kv_lora_rank`` values) and the rotated key
``k_pe`` (RoPE, ``rope_dim`` values). The reference pair defines the bytes:

    quantize(kv_c [T, kv_lora_rank], k_pe [T, rope_dim], scale) -> rows uint8 [T, row_bytes]
    dequantize(rows uint8 [T, row_bytes], geometry, scale)      -> kv_c, k_pe in bf16

``kv_c`` and ``k_pe`` are bf16, or fp32 where a fused kernel has not rounded yet. ``scale`` is an fp32 tensor of one
element for formats whose scale lives outside the cache and is ignored by the others. The Triton pair does the same to a
block of tokens in registers:

    encode(kv_c [T, NOPE_BLOCK], k_pe [T, ROPE_BLOCK], scale, row_ptr [T], suffix_ptr [T], mask [T],
           KV_LORA_RANK, ROPE_DIM, ARCH)
    decode(row_ptr [T], suffix_ptr [T], mask [T], scale, KV_LORA_RANK, ROPE_DIM, NOPE_BLOCK, ROPE_BLOCK)
        -> kv_c, k_pe in bf16

``NOPE_BLOCK`` and ``ROPE_BLOCK`` are the widths rounded up to a power of two. Columns past the width hold zeros on the
way in and may hold anything on the way out. ``row_ptr`` points to the first byte of each row; ``mask`` is false for
tokens without a row. ``ARCH`` is the target's compute capability times ten (90, 100, …), 0 in the interpreter.

In most formats a page is its rows, one after another. Some keep the last ``suffix_bytes`` of every row together at the
end of the page instead, and some round pages up to a multiple of ``page_alignment``:

    page of n tokens = n · (row_bytes - suffix_bytes), then n · suffix_bytes, then padding that is never touched

What ``quantize`` returns is the row put together, suffix last; ``row_ptr`` points to its first part in the page and
``suffix_ptr`` to its suffix. Formats without a suffix leave ``suffix_ptr`` alone, and no instruction computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dsmla_bench.kernels.arch import Architecture

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "e4m3": 1, "e5m2": 1, "ue8m0": 1, "int8": 1, "uint8": 1, "e2m1": 0.5}
"""Item types that a row may hold, and their size in bytes."""


@dataclass(frozen=True)
class Geometry:
    """The widths of one token: latent values and RoPE values. DeepSeek-V3.2: 512 + 64."""

    kv_lora_rank: int = 512
    rope_dim: int = 64

    def __post_init__(self) -> None:
        if self.kv_lora_rank < 1 or self.rope_dim < 0:
            raise ValueError(f"kv_lora_rank must be 1 or more and rope_dim 0 or more, found {self}")

    def __str__(self) -> str:
        return f"{self.kv_lora_rank}+{self.rope_dim}"


@dataclass(frozen=True)
class Field:
    """A run of equal items in a row.

    dtype is one of ITEM_BYTES; offset is in bytes from the row's start; count is in items; order says how
    items follow each other when that is not simply their index.
    """

    name: str
    dtype: str
    offset: int
    count: int
    order: str = "by index"

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"field {self.name}: dtype {self.dtype!r} is none of {', '.join(ITEM_BYTES)}")

    @property
    def nbytes(self) -> int:
        """Bytes that the field takes."""
        return int(self.count * ITEM_BYTES[self.dtype])

    @property
    def end(self) -> int:
        """The first byte after the field."""
        return self.offset + self.nbytes


@dataclass(frozen=True)
class CacheFormat:
    """A KV-cache format in one revision of its scale rule. See the module docstring for the four functions.

    name, revision   what ``--formats`` takes (``fp8_ds_mla`` or ``fp8_ds_mla:amax448``) and every row carries
    default          whether a bare name means this revision
    summary          one line for tables
    fields           the row's fields for a geometry, in byte order and without gaps
    geometry         the only geometry it can store, or None when it stores any
    external_scale   whether one fp32 scale per layer lives outside the cache
    conversion       for an architecture: "native", "emulated", "none" (needs none), or None when it cannot be compiled
    suffix_bytes     how many of a row's last bytes lie at the end of its page
    page_alignment   bytes that a page is rounded up to a multiple of
    access_bytes     bytes that its kernels move at once where that is more than any item has
    lab              whether it is here for comparison: swept when it is named, not by default
    """

    name: str
    revision: str
    summary: str
    fields: Callable[[Geometry], tuple[Field, ...]]
    quantize: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    dequantize: Callable[[torch.Tensor, Geometry, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
    encode: Any
    decode: Any
    conversion: Callable[[Architecture], str | None]
    default: bool = True
    geometry: Geometry | None = None
    external_scale: bool = False
    suffix_bytes: int = 0
    page_alignment: int = 1
    access_bytes: int = 1
    lab: bool = False

    @property
    def key(self) -> str:
        """``name:revision``."""
        return f"{self.name}:{self.revision}"

    def require(self, geometry: Geometry) -> None:
        """Raise ValueError when the format cannot store tokens of this geometry."""
        if self.geometry is not None and geometry != self.geometry:
            raise ValueError(
                f"{self.name} needs {self.geometry}, got {geometry} (kv_lora_rank+rope_dim); use bf16 or fp8"
            )

    def row_bytes(self, geometry: Geometry = Geometry()) -> int:
        """Bytes of one token's row. Raises ValueError when the format cannot store the geometry."""
        self.require(geometry)
        return self.fields(geometry)[-1].end

    def page_bytes(self, block_size: int, geometry: Geometry = Geometry()) -> int:
        """Bytes of a page of ``block_size`` tokens, padding included.

        Raises ValueError for less than one token, and when the format cannot store the geometry.
        """
        if block_size < 1:
            raise ValueError(f"a page holds 1 token or more, found a block_size of {block_size}")
        return -(-block_size * self.row_bytes(geometry) // self.page_alignment) * self.page_alignment

    def alignment(self, geometry: Geometry = Geometry()) -> int:
        """Bytes that row addresses must be a multiple of, so that every access is naturally aligned."""
        return max(self.access_bytes, *(int(ITEM_BYTES[field.dtype]) for field in self.fields(geometry)))
