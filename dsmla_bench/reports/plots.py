"""Pictures of a run: µs against tokens, GB/s against tokens, and predicted floors where nothing was timed.

A panel per operation and format, a line per provider with a colour (Okabe and Ito's, told apart by the colour-blind), a
marker and a dash pattern of its own, so that it reads in black and white. A hollow marker is a launch-bound time. Which
rows are drawn where a run holds several for one point is the business of ``curves``; the subtitle says it.

Drawn on ``Figure`` objects, without pyplot and its global state, on the sheet that ``sheet`` lays out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from dsmla_bench.reports.curves import PANEL, NothingToPlotError, curves, describe
from dsmla_bench.reports.kernel_frame import BASELINE, in_order, providers_of
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet, plain_numbers, spread
from dsmla_bench.reports.tables import format_label, significant

DPI = 140
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1, 1, 1)), (0, (3, 1)), (0, (8, 2)))


def us_figure(
    rows: pd.DataFrame, *, baseline: str = BASELINE, default_revisions: Mapping[str, str] | None = None
) -> Figure:
    """µs against tokens, log-log, over the floor (``bound_us``); predicted floors as bars when nothing was timed.

    Raises NothingToPlotError, a ValueError, when nothing was timed and nothing predicted.
    """
    if not (rows["status"] == "ok").any() and rows["predicted_us"].notna().any():
        return _predicted_figure(rows, default_revisions or {})
    drawn = curves(rows)
    floor = Line2D([], [], color=GREY, linewidth=1.2, label="floor: empty kernel or copy bandwidth")
    legend = _legend(drawn, providers_of(rows, baseline)) + ([floor] if drawn["bound_us"].notna().any() else [])
    sheet = Sheet(rows["operation"].nunique(), len(_formats(rows)), "Time of one launch", describe(drawn), legend)
    lowest = min(value for value in (drawn["us"].min(), drawn["bound_us"].min()) if not pd.isna(value))
    for axes, here in _panels(sheet, rows, drawn, default_revisions or {}, notes_at=0.96):
        _draw_lines(axes, here, "us", providers_of(rows, baseline))
        _draw_floor(axes, here.dropna(subset=["bound_us"]))
        axes.set_yscale("log")
        axes.set_ylim(0.6 * lowest, 3 * drawn["us"].max())
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=30))
        plain_numbers(axes.yaxis)
    sheet.label("tokens per launch", "time (µs)")
    return sheet.figure


def gbps_figure(
    rows: pd.DataFrame, *, baseline: str = BASELINE, default_revisions: Mapping[str, str] | None = None
) -> Figure:
    """GB/s against tokens with the measured bandwidth of a copy kernel as the ceiling.

    Raises NothingToPlotError, a ValueError, when nothing was timed.
    """
    drawn = curves(rows)
    measured, fastest = drawn["copy_gbps"].dropna(), drawn["gbps"].max()
    ceiling = pd.NA if measured.empty else float(measured.median())
    if pd.isna(fastest):
        raise NothingToPlotError("there is nothing timed to plot in GB/s: no timed row knows how many bytes it moves")
    legend = _legend(drawn, providers_of(rows, baseline))
    sheet = Sheet(rows["operation"].nunique(), len(_formats(rows)), "Bandwidth of one launch", describe(drawn), legend)
    top = 1.2 * (fastest if pd.isna(ceiling) else max(ceiling, fastest))
    below_ceiling = 0.97 if pd.isna(ceiling) else ceiling / top - 0.03
    for axes, here in _panels(sheet, rows, drawn, default_revisions or {}, below_ceiling):
        _draw_lines(axes, here.dropna(subset=["gbps"]), "gbps", providers_of(rows, baseline))
        axes.set_ylim(0, top)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        plain_numbers(axes.yaxis)
        if not pd.isna(ceiling):
            axes.axhline(ceiling, color=GREY, linewidth=1.2, zorder=1)
            text = f"copy kernel: {significant(ceiling)} GB/s"
            axes.text(
                0.03, ceiling, text, transform=axes.get_yaxis_transform(), va="bottom", color=GREY, fontsize=SMALL
            )
    sheet.label("tokens per launch", "bytes moved / time (GB/s)")
    return sheet.figure


def save(figure: Figure, path: Path) -> Path:
    """Write ``figure`` as a PNG and return ``path``."""
    with warnings.catch_warnings():
        # A device or run name may hold characters that the font lacks: a box in the picture says so well enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=DPI, format="png", metadata={"Software": None})
    return path


def _predicted_figure(rows: pd.DataFrame, default_revisions: Mapping[str, str]) -> Figure:
    """A bar per format and architecture: the floor that the published bandwidth predicts at the largest size."""
    known = rows[rows["predicted_us"].notna()]
    known = in_order(known[known["tokens"] == known["tokens"].max()]).drop_duplicates([*PANEL, "arch"])
    archs, operations = list(known["arch"].unique()), list(known["operation"].unique())
    tokens = f"{known['tokens'].iloc[0]} tokens"
    subtitle = f"{', '.join(archs)}, {tokens}: the bytes of each format at the vendor's published bandwidth"
    height = max(1.4, 0.2 + 0.19 * int(known["operation"].value_counts().max()))
    title = "Predicted floor (nothing was timed)"
    sheet = Sheet(len(operations), 1, title, subtitle, [], left=1.6, panel_height=height)
    for number, operation in enumerate(operations):
        here = known[known["operation"] == operation]
        axes = sheet.panel(number, 0, operation)
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


def _panels(
    sheet: Sheet, rows: pd.DataFrame, drawn: pd.DataFrame, default_revisions: Mapping[str, str], notes_at: float
) -> Iterator[tuple[Axes, pd.DataFrame]]:
    """Axes for every operation (a row) and format (a column) of the run; yields those with something to draw.

    ``notes_at`` is the height in a panel, 0 to 1, below which it says what is emulated or not timed.
    """
    for number, operation in enumerate(in_order(rows)["operation"].unique()):
        leftmost = True
        for column, (format, revision) in enumerate(_formats(rows)):
            key = (operation, format, revision)
            everything, here = _select(rows, key), _select(drawn, key)
            if everything.empty:
                continue
            axes = sheet.panel(
                number, column, f"{operation} · {format_label(rows, format, revision, default_revisions)}"
            )
            axes.set_xscale("log")
            axes.set_xlim(0.6 * drawn["tokens"].min(), 1.7 * drawn["tokens"].max())
            axes.xaxis.set_major_locator(FixedLocator(spread(list(drawn["tokens"]))))
            axes.xaxis.set_minor_locator(NullLocator())
            plain_numbers(axes.xaxis)
            axes.tick_params(labelleft=leftmost)
            leftmost = leftmost and here.empty
            axes.text(0.03, notes_at, _notes(everything, here), transform=axes.transAxes, va="top", color=GREY,
                      fontsize=SMALL, parse_math=False)  # fmt: skip
            if here.empty:
                axes.set_yticks([])
            else:
                yield axes, here


def _formats(rows: pd.DataFrame) -> list[tuple[str, str]]:
    keys = rows[["format", "revision"]].drop_duplicates().sort_values(["format", "revision"])
    return list(zip(keys["format"], keys["revision"], strict=True))


def _select(rows: pd.DataFrame, key: tuple[str, str, str]) -> pd.DataFrame:
    return rows[(rows[PANEL] == list(key)).all(axis=1)]


def _notes(everything: pd.DataFrame, here: pd.DataFrame) -> str:
    """Whom a panel lacks and who emulates: "vllm: skipped"."""
    missing = everything[~everything["provider"].isin(here["provider"])]
    lines = [f"{name}: {'/'.join(group['status'].unique())}" for name, group in missing.groupby("provider")]
    emulated = here.loc[here["conversion"].isin(["emulated"]), "provider"].unique()
    return "\n".join([*lines, *(f"{name}: conversion emulated" for name in emulated)])


def _draw_floor(axes: Axes, known: pd.DataFrame) -> None:
    """``bound_us`` between the sizes that were measured too, where its bend is."""
    if known.empty:
        return
    known = known.drop_duplicates("tokens").sort_values("tokens")
    measured = known["tokens"].to_numpy(float)
    moved = (known["bytes_read"] + known["bytes_written"]).to_numpy(float)
    tokens = np.geomspace(0.85 * measured[0], 1.15 * measured[-1], 300)
    at_copy_bandwidth = tokens * np.interp(tokens, measured, moved / measured) / known["copy_gbps"].median() / 1e3
    floor = np.maximum(known["floor_us"].median(), at_copy_bandwidth)
    axes.plot(tokens, floor, color=GREY, linewidth=1.2, zorder=1)


def _draw_lines(axes: Axes, here: pd.DataFrame, column: str, providers: list[str]) -> None:
    """A line per provider; the markers of launch-bound rows hollow."""
    for provider in [name for name in providers if name in set(here["provider"])]:
        line = here[here["provider"] == provider]
        style = _style(providers, provider)
        axes.plot(line["tokens"].to_numpy(float), line[column].to_numpy(float), **style)
        hollow = line[line["launch_bound"].fillna(False).astype(bool)]
        style |= {"linestyle": "", "markerfacecolor": "white"}
        axes.plot(hollow["tokens"].to_numpy(float), hollow[column].to_numpy(float), **style)


def _legend(drawn: pd.DataFrame, providers: list[str]) -> list[Line2D]:
    """A handle for each provider that is drawn, and one for hollow markers where there are any."""
    present = set(drawn["provider"])
    handles = [Line2D([], [], label=name, **_style(providers, name)) for name in providers if name in present]
    hollow: dict[str, Any] = {"color": "#000000", "marker": "o", "markerfacecolor": "white", "linestyle": ""}
    if drawn["launch_bound"].fillna(False).any():
        handles.append(Line2D([], [], label="launch-bound", **hollow))
    return handles


def _style(providers: list[str], provider: str) -> dict[str, Any]:
    number = providers.index(provider)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.6,
        "markersize": 5,
        "clip_on": False,
    }
