"""Paged caches as tensors: making them, opening one from elsewhere, and where in a page a token's bytes lie.

    cache  uint8 [blocks, block_size, row_bytes], rows and pages may be padded

is the shape of every cache, those of formats whose pages end in a suffix (``formats.base``) included, as in vLLM and
FlashMLA: the block size is in the shape, padding of pages in the page stride. With a suffix, ``cache[page]`` as one run
of bytes is the page, but ``cache[page, row]`` is no token's row, and rows cannot be padded. ``load_rows`` and
``store_rows`` put rows together and take them apart, ``token_pointers`` finds their parts in a kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats import CacheFormat, Geometry, get_format

_ITEM_TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "ue8m0": torch.float8_e8m0fnu,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "e2m1": torch.uint8,
}


def new_cache(
    fmt: CacheFormat, blocks: int, block_size: int, device: torch.device, geometry: Geometry = Geometry()
) -> torch.Tensor:
    """An uninitialised cache [blocks, block_size, row_bytes] in pages of ``fmt.page_bytes``. Raises ValueError."""
    row_bytes = fmt.row_bytes(geometry)
    pages = torch.empty(blocks, fmt.page_bytes(block_size, geometry), dtype=torch.uint8, device=device)
    return pages[:, : block_size * row_bytes].view(blocks, block_size, row_bytes)


def cache_of(fmt: CacheFormat, rows: torch.Tensor, block_size: int, geometry: Geometry = Geometry()) -> torch.Tensor:
    """A cache whose slots hold ``rows`` uint8 [blocks · block_size, row_bytes] in order; may share their memory."""
    blocks = len(rows) // block_size
    if not fmt.suffix_bytes and fmt.page_alignment == 1:
        return rows.view(blocks, block_size, -1)
    cache = new_cache(fmt, blocks, block_size, rows.device, geometry)
    pages = rows.view(blocks, block_size, -1)
    for part, values in zip(_parts(fmt, cache), _split(fmt, pages), strict=True):
        part[:] = values
    return cache


def load_rows(fmt: CacheFormat, cache: torch.Tensor, page: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """The rows uint8 [T, row_bytes] of the tokens at (page [T], row [T])."""
    if not fmt.suffix_bytes:
        return cache[page, row]
    return torch.cat([part[page, row] for part in _parts(fmt, cache)], dim=-1)


def store_rows(
    fmt: CacheFormat, cache: torch.Tensor, page: torch.Tensor, row: torch.Tensor, rows: torch.Tensor
) -> None:
    """Put rows uint8 [T, row_bytes] to (page [T], row [T])."""
    for part, values in zip(_parts(fmt, cache), _split(fmt, rows), strict=True):
        part[page, row] = values


def fields_of(fmt: CacheFormat, cache: torch.Tensor, geometry: Geometry = Geometry()) -> dict[str, torch.Tensor]:
    """The cache field by field, views [blocks, block_size, count] in the field's type by its name.

    Types that torch has no use for are uint8: e2m1, two values in a byte, and padding.
    """
    data, *suffix = _parts(fmt, cache)
    views, boundary = {}, data.shape[-1]
    for item in fmt.fields(geometry):
        part, start = (data, 0) if item.end <= boundary else (suffix[0], boundary)
        views[item.name] = part[..., item.offset - start : item.end - start].view(_ITEM_TYPES[item.dtype])
    return views


def data_stride(fmt: CacheFormat, cache: torch.Tensor) -> int:
    """Bytes from one token's ``row_ptr`` to the next one's."""
    return cache.stride(1) - fmt.suffix_bytes


@triton.jit
def page_and_row(position, BLOCK_SIZE: tl.constexpr):
    """Page and row in it of positions that are not negative (int64); unsigned, which saves rounding towards zero."""
    unsigned = position.to(tl.uint64)
    return (unsigned // BLOCK_SIZE).to(tl.int64), (unsigned % BLOCK_SIZE).to(tl.int64)


@triton.jit
def token_pointers(
    cache_ptr, page, row, page_stride, data_stride, BLOCK_SIZE: tl.constexpr, SUFFIX_BYTES: tl.constexpr
):
    """Where the rows of tokens at (page, row) begin, and where their parts of the pages' suffixes do."""
    page_ptr = cache_ptr + page * page_stride
    return page_ptr + row * data_stride, page_ptr + BLOCK_SIZE * data_stride + row * SUFFIX_BYTES


def open_cache(
    name: str | None, cache: torch.Tensor, block_size: int, geometry: Geometry = Geometry()
) -> tuple[CacheFormat, torch.Tensor]:
    """The format called ``name``, and ``cache`` as a checked uint8 [blocks, block_size, row_bytes] on the same memory.

    ``cache`` has items of any type, as [blocks, block_size, width], with a dimension of one head before the width
    (FlashMLA's shape), or as whole pages [blocks, width]. Formats share widths, so the format is asked for and never
    guessed. Raises ValueError for no name or an unknown one, and for a cache that cannot be of that format, naming the
    formats that its width fits.
    """
    found = f"found {cache.dtype} {list(cache.shape)}"
    if cache.dim() not in (2, 3, 4) or (cache.dim() == 4 and cache.shape[2] != 1) or cache.stride(-1) != 1:
        raise ValueError(f"cache must be [blocks, block_size, width] or [blocks, width], bytes in order, {found}")
    cache = (cache.squeeze(2) if cache.dim() == 4 else cache).view(torch.uint8)
    if cache.dim() == 3 and cache.shape[1] != block_size:
        raise ValueError(f"cache must have {block_size} tokens a page, {found}")
    whole_pages, width = cache.dim() == 2, cache.shape[-1]

    def size(fmt: CacheFormat, geometry: Geometry) -> int:
        return fmt.page_bytes(block_size, geometry) if whole_pages else fmt.row_bytes(geometry)

    if not name:
        raise ValueError(f"a cache does not tell its format: name it; {checks.fitting(width, geometry, size)}")
    fmt = get_format(name)
    wanted = size(fmt, geometry)
    if width != wanted:
        what = f"pages of {block_size} tokens" if whole_pages else "rows"
        hint = checks.fitting(width, geometry, size)
        raise ValueError(f"{fmt.key} has {what} of {wanted} bytes, the cache has {width}; {hint}")
    if whole_pages:
        row_bytes = fmt.row_bytes(geometry)
        cache = cache[:, : block_size * row_bytes].unflatten(1, (block_size, row_bytes))
    checks.check_cache(fmt, cache, geometry)
    return fmt, cache


def _parts(fmt: CacheFormat, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The cache as [blocks, block_size, bytes]: whole rows, or what precedes the pages' suffixes and the suffixes."""
    if not fmt.suffix_bytes:
        return (cache,)
    blocks, block_size, row_bytes = cache.shape
    page_stride, data, suffix = cache.stride(0), row_bytes - fmt.suffix_bytes, fmt.suffix_bytes
    return (
        cache.as_strided((blocks, block_size, data), (page_stride, data, 1)),
        cache.as_strided(
            (blocks, block_size, suffix), (page_stride, suffix, 1), cache.storage_offset() + block_size * data
        ),
    )


def _split(fmt: CacheFormat, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows [..., row_bytes] in the parts that ``_parts`` has."""
    if not fmt.suffix_bytes:
        return (rows,)
    return rows[..., : -fmt.suffix_bytes], rows[..., -fmt.suffix_bytes :]
