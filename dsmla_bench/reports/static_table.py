"""Compiled kernels as a table per target: resources, what the machine code consists of, and the predicted floor.

A line is a kernel: shapes that launch the same one share it, with their tokens as a range. ``rows`` is a frame as
``results.rows_frame`` makes it; the result is what ``renderings`` turns into text, Markdown or rich tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsmla_bench.reports.kernel_frame import in_order, unit_of
from dsmla_bench.reports.tables import UNDEFINED, Column, KernelTables, Table, format_label, reasons, significant
from dsmla_bench.rows import OWN_AXES

WIDTHS = (8, 16, 32, 64, 128, 256)
KERNEL = ["arch", "operation", "format", "revision", "provider", *OWN_AXES, "block_size", "kv_lora_rank", "rope_dim"]
"""The axes that a kernel depends on besides tokens; the others (page order, L2 state, data) never change it."""
RESOURCES = ["registers", "spilled_bytes", "stack_bytes", "shared_bytes", "num_warps", "occupancy", "occupancy_limit"]
MIX = [
    *("instructions", *(f"global_{kind}_{bits}" for kind in ("loads", "stores") for bits in WIDTHS)),
    *("bytes_per_global_instruction", "local_loads", "local_stores", "shared_instructions", "barriers", "conversions"),
    *("float_instructions", "integer_instructions", "other_instructions", "native_fp8", "native_fp4"),
]
COLUMNS = {
    "registers": ("resources", "registers"),
    "occupancy": ("resources", "occ. %"),
    "occupancy_limit": ("resources", "limited by"),
    "shared_bytes": ("resources", "shared B"),
    "spilled_bytes": ("resources", "spilled B"),
    "instructions": ("instructions", "all"),
    "global_instructions": ("instructions", "global"),
    "bytes_per_global_instruction": ("instructions", "B each"),
    "shared_instructions": ("instructions", "shared"),
    "barriers": ("instructions", "barrier"),
    "conversions": ("mix", "convert"),
    "float_instructions": ("mix", "float"),
    "integer_instructions": ("mix", "integer"),
    "other_instructions": ("mix", "other"),
    "native": ("target", "native"),
    "predicted_us": ("target", "floor µs"),
}
"""Column of the frame → the group and the name that it has in the table."""
NOTES = {
    "occ. %": "occ. %: resident warps that the kernel's resources allow, in percent of what a multiprocessor can hold",
    "all": "instructions, mix: of the machine code, counted once each however often they run; B each: bytes that a "
    "thread moves with one global load or store, on average",
    "native": "native: the conversion instructions that the code uses; a target without them emulates",
    "floor µs": "floor µs: the bytes of the line's largest shape at the bandwidth that NVIDIA publishes for the part "
    "above the table; a prediction, not a measurement",
}
"""Name of a column → what it means, where it is shown."""


def has_static_facts(rows: pd.DataFrame) -> bool:
    """Whether any row says what its machine code consists of."""
    return bool(rows["instructions"].notna().any())


def kernels_of(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per compiled kernel, in order: ``KERNEL``, its facts, and of its shapes ``first`` and ``last`` tokens.

    ``predicted_us`` is that of the last. Adds global_instructions, and native: "e4m3", "e4m3 e2m1", … or a dash.
    """
    compiled = in_order(rows[(rows["status"] == "compiled") & rows["instructions"].notna()])
    tokens = compiled.groupby([*KERNEL, *RESOURCES, *MIX], dropna=False, sort=False)["tokens"]
    compiled = compiled.assign(first=tokens.transform("min"), last=tokens.transform("max"))
    kernels = compiled[compiled["tokens"] == compiled["last"]].drop_duplicates([*KERNEL, "last"])
    by_width = [name for name in MIX if name.startswith("global_")]
    native = [_native(fp8, fp4) for fp8, fp4 in zip(kernels["native_fp8"], kernels["native_fp4"], strict=True)]
    return kernels.assign(global_instructions=kernels[by_width].sum(axis=1), native=native).reset_index(drop=True)


def static_tables(
    rows: pd.DataFrame, *, headline: str = "", default_revisions: Mapping[str, str] | None = None
) -> KernelTables:
    """A table per target of a run's compiled kernels, with the reasons of rows that could not be compiled."""
    kernels = kernels_of(rows)
    shared = [axis for axis in ("block_size", "kv_lora_rank", "rope_dim", "provider") if kernels[axis].nunique() == 1]
    labels = default_revisions or {}
    tables = [
        Table(_title(str(arch), group), (*_axes(rows, group, shared, labels), *_facts(group)))
        for arch, group in kernels.groupby("arch", sort=False)
    ]
    common = ", ".join(f"{axis.replace('_', ' ')} {kernels[axis].iloc[0]}" for axis in shared)
    shown = {column.name for table in tables for column in table.columns}
    notes = tuple(note for name, note in NOTES.items() if name in shown)
    return KernelTables(headline, common, tuple(tables), notes, reasons(rows))


def _title(arch: str, group: pd.DataFrame) -> str:
    part, gbps = group["published_part"].iloc[0], group["published_gbps"].iloc[0]
    return arch if pd.isna(part) else f"{arch} · {part}, {gbps:.0f} GB/s (published)"


def _axes(rows: pd.DataFrame, group: pd.DataFrame, shared: list[str], revisions: Mapping[str, str]) -> list[Column]:
    formats = [format_label(rows, *key, revisions) for key in zip(group["format"], group["revision"], strict=True)]
    ranges = [_range(kernel) for _, kernel in group.iterrows()]
    varying = [axis for axis in ("provider", "block_size", "kv_lora_rank", "rope_dim") if axis not in shared]
    own = [axis for axis in OWN_AXES if group[axis].notna().any()]
    return [
        Column("", "operation", tuple(map(str, group["operation"])), numeric=False, key=True),
        Column("", "format", tuple(formats), numeric=False, key=True),
        *(Column("", axis, tuple(map(_cell, group[axis])), numeric=axis != "variant", key=True) for axis in own),
        *(Column("", axis.replace("_", " "), tuple(map(str, group[axis])), key=True) for axis in varying),
        Column("", "tokens", tuple(ranges), key=True),
    ]


def _range(kernel: pd.Series[Any]) -> str:
    """ "1 to 8192", the sizes that launch a kernel; with the unit where it is not tokens."""
    first, last, unit = kernel["first"], kernel["last"], unit_of(kernel["queries"])
    return (str(last) if first == last else f"{first} to {last}") + (f" {unit}" if unit != "tokens" else "")


def _facts(group: pd.DataFrame) -> list[Column]:
    columns = []
    for name, (heading, label) in COLUMNS.items():
        cells = tuple(_cell(value) for value in group[name])
        if set(cells) != {UNDEFINED}:
            columns.append(Column(heading, label, cells, numeric=name not in ("occupancy_limit", "native")))
    return columns


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else significant(value)


def _native(fp8: Any, fp4: Any) -> str:
    used = [name for name, value in (("e4m3", fp8), ("e2m1", fp4)) if not pd.isna(value) and value]
    return " ".join(used) or UNDEFINED
