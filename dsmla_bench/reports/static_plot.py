"""A picture of compiled kernels: what their machine code consists of, a panel of bars per target.

A bar is the kernel that an operation and format (with so many heads, where it has any) launch at the largest size: its
instructions by class, each counted once, with registers per thread and theoretical occupancy at its end. Colours are
Okabe and Ito's; hatches tell the classes apart in black and white.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet, plain_numbers
from dsmla_bench.reports.static_table import has_static_facts, kernels_of
from dsmla_bench.reports.tables import format_label, significant
from dsmla_bench.rows import OWN_AXES

COLUMNS = 2
NAMED = ["operation", "format", "revision", "provider", *OWN_AXES]
EDGE = "#444444"
BAR = 0.21
"""Inches of height for one bar."""
LETTER = 0.075
"""Inches that a letter of a bar's name takes."""
CLASSES = {
    "global_instructions": ("global memory", "#0072B2", ""),
    "shared": ("shared memory, barriers", "#56B4E9", "///"),
    "local": ("local memory (spills)", "#D55E00", "xxx"),
    "conversions": ("conversions", "#009E73", "..."),
    "float_instructions": ("floating point", "#E69F00", ""),
    "integer_instructions": ("integer, addresses", "#BBBBBB", "\\\\\\"),
    "other_instructions": ("moves, control, other", "#F2F2F2", ""),
}
"""Column → label, colour and hatch, in the order in which they are stacked."""


def instructions_figure(rows: pd.DataFrame, *, default_revisions: Mapping[str, str] | None = None) -> Figure:
    """The picture that the module docstring describes. Raises NothingToPlotError when no row has an instruction mix."""
    if not has_static_facts(rows):
        raise NothingToPlotError("there is nothing compiled to plot: no row says what its machine code consists of")
    kernels = _largest(kernels_of(rows))
    targets, names = list(kernels["arch"].unique()), _names(kernels, rows, default_revisions or {})
    columns = min(COLUMNS, len(targets))
    subtitle = (
        "every operation at its largest size; each instruction of the code counted once, however often it runs; at the "
        "end of a bar: registers per thread, theoretical occupancy"
    )
    sheet = Sheet(
        -(-len(targets) // columns), columns, "What the compiled kernels consist of", subtitle, _legend(kernels),
        left=0.4 + LETTER * max(map(len, names.values())), panel_height=0.35 + BAR * len(names), least_width=3.7,
    )  # fmt: skip
    for number, (arch, group) in enumerate(kernels.groupby("arch", sort=False)):
        row, column = divmod(number, columns)
        part = group["published_part"].iloc[0]
        axes = sheet.panel(row, column, str(arch) if pd.isna(part) else f"{arch} · {part}")
        _draw_bars(axes, group, list(names))
        axes.set_xlim(0, 1.45 * kernels["instructions"].max())
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), list(names.values()) if column == 0 else [], parse_math=False)
    sheet.label("instructions", "")
    return sheet.figure


def _names(kernels: pd.DataFrame, rows: pd.DataFrame, revisions: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Every kernel of any target → what its bar is called.

    The provider and the axes of its operation alone (heads, …) are named where there are several.
    """
    several = kernels["provider"].nunique() > 1
    varying = kernels.groupby("operation", sort=False)[list(OWN_AXES)].nunique() > 1
    names = {}
    for operation, format, revision, provider, *own in _keys(kernels):
        axes = [f"{axis} {value}" for axis, value in zip(OWN_AXES, own, strict=True) if varying.loc[operation, axis]]
        label = format_label(rows, format, revision, revisions)
        parts = [operation, label, *([provider] if several else []), *axes]
        names[operation, format, revision, provider, *own] = " ".join(parts)
    return names


def _keys(kernels: pd.DataFrame) -> list[tuple[str, ...]]:
    """What tells the bars of one target apart, as texts; "" for an axis that the operation does not have."""
    texts = kernels[NAMED].astype("string").fillna("")
    return list(texts.itertuples(index=False, name=None))


def _legend(kernels: pd.DataFrame) -> list[Patch]:
    return [
        Patch(facecolor=colour, hatch=hatch, edgecolor=EDGE, linewidth=0.5, label=label)
        for name, (label, colour, hatch) in CLASSES.items()
        if kernels[name].sum()
    ]


def _largest(kernels: pd.DataFrame) -> pd.DataFrame:
    """For every target and bar the kernel of the largest size, with the classes that are drawn."""
    kernels = kernels.sort_values("last", kind="stable").drop_duplicates(["arch", *NAMED], keep="last").sort_index()
    return kernels.assign(
        shared=kernels["shared_instructions"] + kernels["barriers"],
        local=kernels["local_loads"] + kernels["local_stores"],
    )


def _draw_bars(axes: Axes, group: pd.DataFrame, names: list[tuple[str, ...]]) -> None:
    """A stacked bar for each kernel of one target at the place of its name."""
    places = [names.index(key) for key in _keys(group)]
    start = np.zeros(len(group))
    for name, (_, colour, hatch) in CLASSES.items():
        counts = group[name].to_numpy(float)
        axes.barh(places, counts, left=start, height=0.7, color=colour, hatch=hatch, edgecolor=EDGE, linewidth=0.5)
        start += counts
    for place, end, (_, kernel) in zip(places, start, group.iterrows(), strict=True):
        occupancy = "" if pd.isna(kernel["occupancy"]) else f", {significant(kernel['occupancy'])} %"
        axes.text(end, place, f" {kernel['registers']} regs{occupancy}", va="center", fontsize=SMALL)
    for place in set(range(len(names))) - set(places):
        axes.text(0, place, " none compiled", va="center", fontsize=SMALL, color=GREY)
    axes.grid(False, axis="y")
    plain_numbers(axes.xaxis)
