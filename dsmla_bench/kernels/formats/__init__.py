"""The registry of KV-cache formats: one file each, found by discovery.

``get_format("nvfp4_ds_mla")`` gives the default revision, ``get_format("nvfp4_ds_mla:up")`` a named one. Formats of the
lab (``CacheFormat.lab``) are found by name like all others, and are not among ``default_formats()``.
"""

from __future__ import annotations

import functools
import sys

from dsmla_bench.kernels.discovery import discover, require_unique
from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry

__all__ = ["CacheFormat", "Field", "Geometry", "all_formats", "default_formats", "get_format"]


@functools.cache
def all_formats() -> tuple[CacheFormat, ...]:
    """Every known format in every revision: the lab's last, widest row first, the default revision before its others.

    Raises ValueError when two formats have one name and revision.
    """
    found = discover(sys.modules[__name__], "FORMATS", "dsmla_bench.formats", CacheFormat)
    require_unique((fmt.key for fmt in found), "format")
    return tuple(sorted(found, key=_order))


def _order(fmt: CacheFormat) -> tuple[bool, int, str, bool]:
    return fmt.lab, -fmt.row_bytes(fmt.geometry or Geometry()), fmt.name, not fmt.default


def default_formats() -> tuple[CacheFormat, ...]:
    """The default revision of every format outside the lab: what a sweep covers when no format is named."""
    return tuple(fmt for fmt in all_formats() if fmt.default and not fmt.lab)


def get_format(text: str) -> CacheFormat:
    """The format called ``name`` or ``name:revision``. Raises ValueError listing what exists."""
    name, _, revision = text.partition(":")
    for fmt in all_formats():
        if fmt.name == name and (fmt.revision == revision if revision else fmt.default):
            return fmt
    raise ValueError(f"no format {text!r}; available: {', '.join(fmt.key for fmt in all_formats())}")
