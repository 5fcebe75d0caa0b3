"""What the rows of a history are called, and in which order they are shown. Pure.

A row is named by its main axes (``title_of``) and told from its like by its shape (``shapes_of``): those of its other
axes that are not the same in all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsmla_bench.reports.kernel_frame import OPERATIONS

Axes = Mapping[str, Any]

MAIN_AXES = {
    "operation": "Operation",
    "format": "Format",
    "provider": "Provider",
    "arch": "Architecture",
    "device": "GPU",
}
"""The axes by which rows are looked up, and what they are called."""


def format_of(axes: Axes) -> str:
    """``format:revision``, as far as they are known."""
    return ":".join(str(axes[name]) for name in ("format", "revision") if name in axes)


def title_of(axes: Axes) -> str:
    """ "write fp8_ds_mla:pow2 triton", "gsm8k fp8_ds_mla"."""
    return " ".join(filter(None, (axes.get("operation") or axes.get("task"), format_of(axes), axes.get("provider"))))


def shapes_of(rows: Sequence[Axes]) -> list[str]:
    """Each row's shape: "tokens 128, page order shuffled", "" where all rows are alike."""
    names = dict.fromkeys(name for axes in rows for name in axes if name not in (*MAIN_AXES, "revision", "task"))
    varying = [name for name in names if len({axes.get(name) for axes in rows}) > 1]
    return [", ".join(f"{name.replace('_', ' ')} {axes[name]}" for name in varying if name in axes) for axes in rows]


def order_of(axes: Axes) -> list[tuple[int, float, str]]:
    """A key to sort rows by: operation as reports have them, format, provider, architecture, GPU, then shape."""
    rank = {name: number for number, name in enumerate(OPERATIONS)}
    values = {**axes, "operation": rank.get(str(axes.get("operation")), len(rank))}
    return [_rank(values.get(name)) for name in [*MAIN_AXES, *sorted(values.keys() - MAIN_AXES.keys())]]


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers before texts, which do not compare with each other."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value or ""))
