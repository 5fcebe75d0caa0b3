"""Refusing arguments that cannot be right, before anything is launched.

Each ``check_`` raises ValueError with what was found and what was expected. They look at shapes, types and addresses
only; ``check_slots`` and ``check_starts`` look at values too, which synchronises with the device, and so run on
request. An eager call pays for all the others: ``tensor.shape[0]`` costs a sixth of ``len(tensor)``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsmla_bench.kernels.formats import CacheFormat, Geometry, all_formats

INDEX_TYPES = (torch.int32, torch.int64)


def check_matrix(name: str, tensor: torch.Tensor, dtype: torch.dtype, width: int | None = None) -> None:
    """A 2-D tensor [n, width] of ``dtype`` whose last dimension is contiguous; rows may be strided."""
    expected = f"{dtype} [n, {'any' if width is None else width}]"
    if tensor.dtype != dtype or tensor.dim() != 2 or (width is not None and tensor.shape[1] != width):
        raise ValueError(f"{name} must be {expected}, found {tensor.dtype} {list(tensor.shape)}")
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise ValueError(f"{name} must be contiguous in its last dimension, found stride {tensor.stride(1)}")


def check_rows(
    name: str, tensor: torch.Tensor, rows: int, width: int | None = None, dtype: torch.dtype = torch.bfloat16
) -> None:
    """As ``check_matrix``, with at least ``rows`` rows: one for each token, and what pads a captured graph."""
    check_matrix(name, tensor, dtype, width)
    if tensor.shape[0] < rows:
        raise ValueError(f"{name} must have at least a row for each of {rows} tokens, found {tensor.shape[0]}")


def check_output(name: str, tensor: torch.Tensor, rows: int, width: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """As ``check_rows``, for a tensor that is written: its rows do not overlap."""
    check_rows(name, tensor, rows, width, dtype)
    if tensor.shape[0] > 1 and tensor.stride(0) < width:
        raise ValueError(f"{name} rows must not overlap, found row stride {tensor.stride(0)}")


def check_index(
    name: str, tensor: torch.Tensor, at_least: int = 0, dtypes: tuple[torch.dtype, ...] = INDEX_TYPES
) -> None:
    """A contiguous 1-D tensor of an index type with at least ``at_least`` entries."""
    if tensor.dtype not in dtypes or tensor.dim() != 1 or tensor.shape[0] < at_least:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name} must be {wanted} [>= {at_least}], found {tensor.dtype} {list(tensor.shape)}")
    if tensor.shape[0] > 1 and tensor.stride(0) != 1:
        raise ValueError(f"{name} must be contiguous, found stride {tensor.stride(0)}")


def check_cache(fmt: CacheFormat, cache: torch.Tensor, geometry: Geometry) -> None:
    """A paged cache uint8 [blocks, block_size, row_bytes]: right width, rows apart, items naturally aligned.

    Rows and pages may be padded: their strides may exceed their contents. Not so the rows of a format whose pages end
    in a suffix, which only the page as a whole is made of; and its pages begin where the format's alignment says.
    """
    fmt.require(geometry)
    row_bytes, alignment = fmt.row_bytes(geometry), fmt.alignment(geometry)
    if cache.dtype != torch.uint8 or cache.dim() != 3 or cache.shape[2] != row_bytes:
        found = f"found {cache.dtype} {list(cache.shape)}"
        raise ValueError(f"cache of {fmt.name} must be torch.uint8 [blocks, block_size, {row_bytes}], {found}")
    if cache.shape[1] < 1:
        raise ValueError(f"cache of {fmt.name} must have pages of 1 token or more, found {list(cache.shape)}")
    page_stride, row_stride, byte_stride = cache.stride()
    if byte_stride != 1 or (cache.shape[1] > 1 and row_stride < row_bytes):
        raise ValueError(
            f"cache rows of {fmt.name} must be {row_bytes} bytes one after another, found strides {cache.stride()}"
        )
    if cache.shape[0] > 1 and page_stride < (cache.shape[1] - 1) * row_stride + row_bytes:
        raise ValueError(f"cache pages of {fmt.name} must not overlap, found strides {cache.stride()}")
    if fmt.suffix_bytes and cache.shape[1] > 1 and row_stride != row_bytes:
        raise ValueError(
            f"cache rows of {fmt.name} cannot be padded, as pages end in a suffix; row stride must be {row_bytes}, "
            f"found {row_stride}"
        )
    if cache.shape[0] > 1 and page_stride % fmt.page_alignment:
        raise ValueError(
            f"cache page stride of {fmt.name} must be a multiple of {fmt.page_alignment} bytes, found {page_stride}"
        )
    for name, value in (("address", cache.data_ptr()), ("page stride", page_stride), ("row stride", row_stride)):
        if value % alignment:
            raise ValueError(f"cache {name} of {fmt.name} must be a multiple of {alignment} bytes, found {value}")


def fitting(width: int, geometry: Geometry, size: Callable[[CacheFormat, Geometry], int]) -> str:
    """In words, the formats whose ``size`` (of a row or page) is ``width`` bytes, for messages about a wrong one."""
    fits = [
        fmt.key if fmt.geometry in (None, geometry) else f"{fmt.key} ({fmt.geometry})"
        for fmt in all_formats()
        if size(fmt, fmt.geometry or geometry) == width
    ]
    return f"{width} bytes fit {', '.join(fits)}; say which" if fits else f"{width} bytes fit no known format"


def check_scale(fmt: CacheFormat, scale: torch.Tensor | None) -> None:
    """The external scale: one fp32 value for the formats that have one, or None for 1.0."""
    if scale is None:
        return
    if not isinstance(scale, torch.Tensor):
        raise ValueError(f"scale of {fmt.name} must be a tensor of one torch.float32 value, found {scale!r}")
    if scale.dtype != torch.float32 or scale.numel() != 1 or scale.dim() > 1:
        found = f"found {scale.dtype} {list(scale.shape)}"
        raise ValueError(f"scale of {fmt.name} must be one torch.float32 value, {found}")


def check_devices(**tensors: torch.Tensor | None) -> None:
    """All given tensors lie on one device."""
    devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        raise ValueError(
            f"all tensors must be on one device, found {', '.join(f'{n} on {d}' for n, d in devices.items())}"
        )


def check_slots(name: str, slots: torch.Tensor, capacity: int) -> None:
    """No slot of a tensor of any shape lies beyond the cache. Reads the values."""
    largest = int(slots.max()) if slots.numel() else -1
    if largest >= capacity:
        place = (slots == largest).nonzero()[0].tolist()
        raise ValueError(f"{name}{place} is {largest}, but the cache has slots 0 to {capacity - 1}")


def check_starts(
    block_table: torch.Tensor,
    workspace_starts: torch.Tensor,
    seq_starts: torch.Tensor | None,
    tokens: int,
    blocks: int,
    block_size: int,
) -> None:
    """The requests of a gather: starts from 0 and ascending to at most ``tokens``, pages inside table and cache."""
    requests = block_table.shape[0]
    starts = workspace_starts[:requests].long().cpu()
    if requests and int(starts[0]) != 0:
        raise ValueError(f"workspace_starts[0] must be 0, found {int(starts[0])}")
    ends = torch.cat([starts[1:], torch.tensor([tokens])])
    if bool((ends < starts).any()):
        raise ValueError(f"workspace_starts must ascend to at most {tokens}, found {starts.tolist()}")
    first = torch.zeros_like(starts) if seq_starts is None else seq_starts[:requests].long().cpu()
    if bool((first < 0).any()):
        raise ValueError(f"seq_starts must not be negative, found {first.tolist()}")
    pages = (first + ends - starts + block_size - 1) // block_size
    for request, (count, skip) in enumerate(zip(pages.tolist(), (first // block_size).tolist(), strict=True)):
        if starts[request] == ends[request]:
            continue
        if count > block_table.shape[1]:
            raise ValueError(
                f"request {request} needs {count} pages, but block_table has {block_table.shape[1]} columns"
            )
        used = block_table[request, skip:count]
        if int(used.min()) < 0 or int(used.max()) >= blocks:
            raise ValueError(
                f"block_table[{request}] holds pages {used.tolist()}, but the cache has pages 0 to {blocks - 1}"
            )
