"""Pictures of an accuracy run: what every format costs by task, and KL against bytes per token.

A format has a colour and a marker of its own, the same in both pictures (``format_styles``), and so both read in black
and white. The forest plot turns every difference so that better is to the right: points for accuracies, percent of the
baseline for all else. A hollow marker is an unpaired score; the grey band is the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from dsmla_bench.reports.accuracy_text import Row, row_name
from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.plots import point_style
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet

BAND = "#e6e6e6"
LETTER, LINE = 0.062, 0.16
"""Inches: the width of a letter of a score's name, and the height of one format's line."""
UNITS = {True: "difference, points (better →)", False: "difference, % of the baseline (better →)"}

Styles = Mapping[str, Mapping[str, Any]]
"""How the marker of each format looks: matplotlib's properties by the name that a run's tables give the format."""


def format_styles(*tables: pd.DataFrame) -> Styles:
    """A style for every format that one of the tables names; a further table changes none of those before it."""
    names = dict.fromkeys(name for table in tables for name in table["format"])
    return {name: point_style(number) for number, name in enumerate(names)}


def forest_figure(judged: pd.DataFrame, styles: Styles) -> Figure:
    """Differences with their 95 % intervals: scores down, formats side by side, accuracies above all else.

    Raises NothingToPlotError when no score was compared.
    """
    drawn = _turned(judged)
    if drawn.empty:
        raise NothingToPlotError("no score of a format was compared with the baseline's")
    formats = list(drawn["format"].unique())
    panels = [(bounded, group) for bounded, group in drawn.groupby("bounded", sort=False)]
    longest = max(group["score_name"].nunique() for _, group in panels)
    handles = [*_markers(formats, styles), Patch(facecolor=BAND, label="margin")]
    sheet = Sheet(
        len(panels), 1, "What every format costs in task scores", _forest_subtitle(drawn), handles,
        left=0.5 + LETTER * max(map(len, drawn["score_name"])), least_width=4.6,
        panel_height=0.3 + longest * (LINE * len(formats) + 0.1), row_gap=0.85,
    )  # fmt: skip
    for number, (bounded, group) in enumerate(panels):
        axes = sheet.panel(number, 0, "Accuracy" if bounded else "Other scores")
        _draw_forest(axes, group, {name: styles[name] for name in formats})
        axes.set_xlabel(UNITS[bool(bounded)], fontsize=SMALL)
    return sheet.figure


def kl_bytes_figure(fidelity: pd.DataFrame, styles: Styles) -> Figure:
    """Mean KL against the bytes that a token takes in one layer, with the A/A floor. Bars: 95 % intervals.

    Raises NothingToPlotError when no format has a KL above zero.
    """
    known = fidelity.dropna(subset=["bytes_per_token", "kl_mean"])
    known = known[known["kl_mean"].astype(float) > 0]
    if known.empty:
        raise NothingToPlotError("no format has a KL above zero")
    is_floor = known["is_floor"].fillna(False).astype(bool)
    handles: list[Any] = _markers(known.loc[~is_floor, "format"], styles)
    floors = known[is_floor]
    if len(floors):
        handles.append(Line2D([], [], color=GREY, linestyle="--", label=f"floor: {floors['format'].iloc[0]}"))
    subtitle = "KL of the next-token distribution to the baseline's; bars: 95 % intervals over windows"
    sheet = Sheet(
        1, 1, "Fidelity against bytes per token", subtitle, handles, left=1.0, least_width=4.8, panel_height=3.0
    )
    axes = sheet.panel(0, 0, "")
    for row in known[~is_floor].to_dict("records"):
        _draw_kl(axes, row, styles[row["format"]])
    for value in floors["kl_mean"]:
        axes.axhline(float(value), color=GREY, linestyle="--", linewidth=1.2, zorder=1)
    _kl_axes(axes, known)
    sheet.label("bytes per token and layer", "mean KL, nats")
    return sheet.figure


def _markers(formats: Iterable[str], styles: Styles) -> list[Any]:
    """What the legend says of the formats."""
    return [Line2D([], [], label=name, **styles[name], markersize=6) for name in formats]


def _turned(judged: pd.DataFrame) -> pd.DataFrame:
    """The rows with a delta, with ``score_name`` and x, lo, hi, limit: better is positive, in points or percent."""
    rows: list[dict[str, Any]] = []
    for record in judged[judged["delta"].notna() & judged["higher_is_better"].notna()].to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        sign = 1 if row["higher_is_better"] else -1
        values = [sign * _displayed(row, row[name]) for name in ("delta", "delta_lo", "delta_hi")]
        low, high = sorted(values[1:]) if not any(map(math.isnan, values[1:])) else (math.nan, math.nan)
        limit = _displayed(row, row["margin"])
        placed = {"x": values[0], "lo": low, "hi": high, "limit": limit, "score_name": row_name(row)}
        rows.append({**row, **placed})
    return pd.DataFrame(rows)


def _displayed(row: Row, value: Any) -> float:
    """A difference in points or in percent of the baseline; NaN where it is undefined."""
    if pd.isna(value):
        return math.nan
    if row["bounded"]:
        return 100 * float(value)
    if row["aggregation"] == "exp_mean":
        return 100 * math.expm1(min(float(value), 700.0))
    baseline = row["baseline_score"]
    return math.nan if pd.isna(baseline) or not baseline else 100 * float(value) / abs(float(baseline))


def _draw_forest(axes: Axes, group: pd.DataFrame, styles: Styles) -> None:
    """One panel: names down, the first on top, the formats that have a style of a score below each other."""
    names, formats = list(group["score_name"].unique()), list(styles)
    step = 0.8 / len(formats)
    for row in group.to_dict("records"):
        place = names.index(row["score_name"]) + step * (formats.index(row["format"]) - (len(formats) - 1) / 2)
        style = styles[row["format"]]
        axes.plot([row["lo"], row["hi"]], [place, place], color=style["color"], linewidth=1.4, zorder=2)
        filled = style["color"] if row["paired"] else "white"
        axes.plot([row["x"]], [place], **{**style, "markerfacecolor": filled}, markersize=5.5, zorder=3)
    for number, name in enumerate(names):
        limit = group.loc[group["score_name"] == name, "limit"].max()
        if not math.isnan(limit):
            axes.fill_betweenx([number - 0.45, number + 0.45], -limit, limit, color=BAND, linewidth=0, zorder=0)
    axes.axvline(0, color="#000000", linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.4g}" if value else "0"))


def _forest_subtitle(drawn: pd.DataFrame) -> str:
    hollow = "; hollow: unpaired" if not drawn["paired"].all() else ""
    return f"Against {drawn['baseline'].iloc[0]}, with 95 % intervals{hollow}"


def _draw_kl(axes: Axes, row: dict[Any, Any], style: Mapping[str, Any]) -> None:
    x, y = float(row["bytes_per_token"]), float(row["kl_mean"])
    low, high = (
        float(row.get(name, math.nan)) if not pd.isna(row.get(name)) else math.nan for name in ("kl_lo", "kl_hi")
    )
    if low > 0 and high > 0:
        axes.plot([x, x], [low, high], color=style["color"], linewidth=1.4)
    axes.plot([x], [y], **style, markersize=7)


def _kl_axes(axes: Axes, known: pd.DataFrame) -> None:
    """Bytes from 0; KL logarithmic with labels 0.001, 0.01 …, a decade of room at least."""
    axes.set_xlim(0, 1.08 * float(known["bytes_per_token"].max()))
    axes.set_yscale("log")
    low, high = np.array(axes.get_ylim(), float)
    middle = math.sqrt(low * high)
    axes.set_ylim(min(low, middle / math.sqrt(10)), max(high, middle * math.sqrt(10)))
    axes.yaxis.set_major_locator(LogLocator(numticks=10))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
