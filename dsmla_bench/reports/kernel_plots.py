"""Pictures of a kernel run: µs, GB/s and speed-up by size of launch, and predicted floors where nothing was timed.

All are drawn on the grid of ``kernel_panels``. Each function takes the run's rows and the ``operations`` to draw, all
of them by default, and raises NothingToPlotError, a ValueError, where there is nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.kernel_frame import BASELINE, KEYS, amount, in_order, kernel_frame, production_of
from dsmla_bench.reports.kernel_panels import Grid
from dsmla_bench.reports.plots import COLOURS
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet, plain_numbers
from dsmla_bench.reports.tables import format_label, significant
from dsmla_bench.rows import OWN_AXES

PREDICTED = ["operation", "format", "revision", "arch"]
FLOOR = "floor: empty kernel, copy bandwidth or matrix product"


def us_figure(
    rows: pd.DataFrame,
    operations: Collection[str] | None = None,
    *,
    baseline: str = BASELINE,
    default_revisions: Mapping[str, str] | None = None,
) -> Figure:
    """µs by size of launch, log-log, over the floor (``bound_us``); predicted floors as bars when nothing was timed."""
    shown = rows if operations is None else rows[rows["operation"].isin(operations)]
    if not (rows["status"] == "ok").any() and shown["predicted_us"].notna().any():
        return _predicted_figure(shown, default_revisions or {})
    grid = Grid.of(rows, operations, baseline, default_revisions)
    drawn = grid.drawn
    floor = Line2D([], [], color=GREY, linewidth=1.2, label=FLOOR)
    legend = grid.legend(grid.providers) + ([floor] if drawn["bound_us"].notna().any() else [])
    sheet = grid.sheet("Time of one launch", legend)
    lowest = min(value for value in (drawn["us"].min(), drawn["bound_us"].min()) if not pd.isna(value))
    for axes, here in grid.panels(sheet, notes_at=0.96):
        _draw_lines(grid, axes, here, "us")
        _draw_floor(axes, here.dropna(subset=["bound_us"]))
        axes.set_yscale("log")
        axes.set_ylim(0.6 * lowest, 3 * drawn["us"].max())
        _label_logarithmic(axes)
    sheet.label(grid.size, "time (µs)")
    return sheet.figure


def gbps_figure(
    rows: pd.DataFrame,
    operations: Collection[str] | None = None,
    *,
    baseline: str = BASELINE,
    default_revisions: Mapping[str, str] | None = None,
) -> Figure:
    """GB/s against the size of a launch with the measured bandwidth of a copy kernel as the ceiling."""
    grid = Grid.of(rows, operations, baseline, default_revisions)
    measured, fastest = grid.drawn["copy_gbps"].dropna(), grid.drawn["gbps"].max()
    ceiling = pd.NA if measured.empty else float(measured.median())
    if pd.isna(fastest):
        raise NothingToPlotError("there is nothing timed to plot in GB/s: no timed row knows how many bytes it moves")
    sheet = grid.sheet("Bandwidth of one launch", grid.legend(grid.providers))
    top = 1.2 * (fastest if pd.isna(ceiling) else max(ceiling, fastest))
    below_ceiling = 0.97 if pd.isna(ceiling) else ceiling / top - 0.03
    for axes, here in grid.panels(sheet, below_ceiling):
        _draw_lines(grid, axes, here.dropna(subset=["gbps"]), "gbps")
        axes.set_ylim(0, top)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        plain_numbers(axes.yaxis)
        if not pd.isna(ceiling):
            axes.axhline(ceiling, color=GREY, linewidth=1.2, zorder=1)
            text = f"copy kernel: {significant(ceiling)} GB/s"
            axes.text(
                0.03, ceiling, text, transform=axes.get_yaxis_transform(), va="bottom", color=GREY, fontsize=SMALL
            )
    sheet.label(grid.size, "bytes moved / time (GB/s)")
    return sheet.figure


def speed_up_figure(
    rows: pd.DataFrame,
    operations: Collection[str] | None = None,
    *,
    baseline: str = BASELINE,
    default_revisions: Mapping[str, str] | None = None,
) -> Figure:
    """The baseline's speed-up over every production kernel against the size, log-log, with a line where both are equal.

    Where ``kernel_frame`` draws no speed-up, there is no point. A marker is hollow where either time is launch-bound.
    """
    grid = Grid.of(rows, operations, baseline, default_revisions)
    others = production_of(grid.drawn, baseline)
    if others and baseline in set(grid.drawn["provider"]):
        grid = dataclasses.replace(grid, drawn=_with_speed_ups(grid.drawn, baseline, others))
    found = grid.drawn["speed_up"].dropna().astype(float).tolist() if "speed_up" in grid.drawn else []
    if not found:
        raise NothingToPlotError(f"no time of {baseline} can be compared with one of a production kernel")
    sheet = grid.sheet(f"Speed-up of {baseline}", grid.legend(others))
    for axes, here in grid.panels(sheet, notes_at=0.96):
        _draw_lines(grid, axes, here.dropna(subset=["speed_up"]), "speed_up")
        axes.axhline(1, color=GREY, linewidth=1.2, zorder=1)
        axes.set_yscale("log")
        axes.set_ylim(min(0.8, min(found) / 1.25), 1.6 * max(1.25, *found))
        _label_logarithmic(axes)
    sheet.label(grid.size, f"time of the other / time of {baseline} (×)")
    return sheet.figure


def _with_speed_ups(drawn: pd.DataFrame, baseline: str, others: Sequence[str]) -> pd.DataFrame:
    """The rows with the baseline's ``speed_up`` over them, <NA> for rows of other providers than ``others``.

    ``launch_bound`` is then whether either of the two times is.
    """
    frame = kernel_frame(drawn, baseline)
    parts = []
    for other in others:
        either = frame[[f"{baseline}_launch_bound", f"{other}_launch_bound"]].fillna(False).any(axis=1)
        named = frame[KEYS].assign(provider=other, speed_up=frame[f"speedup_over_{other}"], either_bound=either)
        parts.append(named.dropna(subset=["speed_up"]))
    joined = drawn.merge(pd.concat(parts), how="left", on=[*KEYS, "provider"], validate="one_to_one")
    return joined.assign(launch_bound=joined["either_bound"])


def _label_logarithmic(axes: Axes) -> None:
    """Label the y axis 1, 2, 5, 10, …; powers of ten alone where it spans many."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 3e4 else (1.0,), numticks=30))
    plain_numbers(axes.yaxis)


def _predicted_figure(rows: pd.DataFrame, default_revisions: Mapping[str, str]) -> Figure:
    """A bar per format and architecture: the floor that the published bandwidth predicts at the largest size."""
    known = rows[rows["predicted_us"].notna()]
    largest = known.groupby("operation")["tokens"].transform("max")
    known = in_order(known[known["tokens"] == largest]).drop_duplicates(PREDICTED, keep="last")
    archs, operations = list(known["arch"].unique()), list(known["operation"].unique())
    subtitle = f"{', '.join(archs)}: the bytes of each format at the vendor's published bandwidth"
    height = max(1.4, 0.2 + 0.19 * int(known["operation"].value_counts().max()))
    title = "Predicted floor (nothing was timed)"
    sheet = Sheet(len(operations), 1, title, subtitle, [], left=1.6, panel_height=height)
    for number, operation in enumerate(operations):
        here = known[known["operation"] == operation]
        own = [f"{axis} {here[axis].iloc[0]}" for axis in OWN_AXES if here[axis].notna().all()]
        axes = sheet.panel(number, 0, ", ".join([operation, amount(*here[["tokens", "queries"]].iloc[0]), *own]))
        bars = axes.barh(range(len(here)), here["predicted_us"].to_numpy(float), height=0.6, color=COLOURS[0])
        axes.bar_label(bars, [f"{significant(us)} µs" for us in here["predicted_us"]], padding=3, fontsize=SMALL)
        names = [
            format_label(rows, *key, default_revisions) for key in zip(here["format"], here["revision"], strict=True)
        ]
        several = len(archs) > 1
        labels = [f"{name}, {arch}" if several else name for name, arch in zip(names, here["arch"], strict=True)]
        axes.set_yticks(range(len(here)), labels, parse_math=False)
        axes.grid(False, axis="y")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * known["predicted_us"].max())
        plain_numbers(axes.xaxis)
    sheet.label("predicted floor (µs)", "")
    return sheet.figure


def _draw_floor(axes: Axes, known: pd.DataFrame) -> None:
    """``bound_us`` between the sizes that were measured too, where its bend is."""
    if known.empty:
        return
    known = known.drop_duplicates("tokens").sort_values("tokens")
    measured = known["tokens"].to_numpy(float)
    tokens = np.geomspace(0.85 * measured[0], 1.15 * measured[-1], 300)
    floor = np.maximum(known["floor_us"].median(), _at_bandwidth(known, tokens))
    if known["flops"].notna().all() and known["matmul_tflops"].notna().all():
        work = _per_token(known, tokens, "flops") * tokens / known["matmul_tflops"].median() / 1e6
        floor = np.maximum(floor, work)
    axes.plot(tokens, floor, color=GREY, linewidth=1.2, zorder=1)


def _at_bandwidth(known: pd.DataFrame, tokens: np.ndarray) -> np.ndarray:
    """µs that the bytes of so many tokens take at a copy kernel's bandwidth."""
    moved = _per_token(known, tokens, "bytes_read") + _per_token(known, tokens, "bytes_written")
    return np.asarray(tokens * moved / known["copy_gbps"].median() / 1e3)


def _per_token(known: pd.DataFrame, tokens: np.ndarray, column: str) -> np.ndarray:
    """``column`` per token at sizes between those that were measured."""
    measured = known["tokens"].to_numpy(float)
    return np.asarray(np.interp(tokens, measured, known[column].to_numpy(float) / measured))


def _draw_lines(grid: Grid, axes: Axes, here: pd.DataFrame, column: str) -> None:
    """A line per provider."""
    for provider in [name for name in grid.providers if name in set(here["provider"])]:
        grid.draw(axes, here[here["provider"] == provider], column, provider)
