"""Pictures of an error run: error against magnitude, against sigma and against bytes, and the error of tiles.

A row of panels for every kind of data, NoPE and RoPE side by side, a line per format and revision with a colour, marker
and dash pattern of its own (those of ``plots``). An error of 0 has no place on a logarithmic axis: a panel names the
formats without error instead.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.error_frame import named, of_one_provider, shown_sources
from dsmla_bench.reports.plots import COLOURS, DASHES, MARKERS
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet, plain_numbers

LEAST_VALUES = 64
"""A magnitude with fewer values says little about a format."""
WIDE = 3.9
PANEL_LETTERS = 62
"""How wide a panel is, in inches, and how many letters of a note fit into it."""


def magnitude_figure(errors: pd.DataFrame, buckets: pd.DataFrame, default_revisions: Mapping[str, str]) -> Figure:
    """rel-L2 of the values of one magnitude against that magnitude, log-log."""
    rows = _drawn(errors, default_revisions)
    joined = buckets[(buckets["values"] >= LEAST_VALUES) & (buckets["magnitude"] > 0)]
    title, subtitle = "Error against magnitude", f"Values by binade; magnitudes of fewer than {LEAST_VALUES} left out"
    sheet = _sheet(rows, title, subtitle, shown_sources(rows))
    panels = list(_panels(sheet, rows, shown_sources(rows)))
    for axes, here in panels:
        binades = here.merge(joined, on=["variant", "part"], suffixes=("", "_of_binade"))
        _lines(axes, binades, rows, "magnitude", "rel_l2_of_binade")
    _log_log([axes for axes, _ in panels])
    sheet.label("magnitude of the value", "rel-L2")
    return sheet.figure


def sigma_figure(errors: pd.DataFrame, default_revisions: Mapping[str, str]) -> Figure:
    """rel-L2 of all values against sigma, log-log, for kinds that were measured at several sigmas."""
    rows = _drawn(errors, default_revisions)
    kinds = [str(kind) for kind, group in rows.groupby("kind", sort=False) if group["sigma"].nunique() > 1]
    if not kinds:
        raise NothingToPlotError("no kind of data was measured at several sigmas")
    sheet = _sheet(rows, "Error against the latent's size", "Every value of the data times sigma", kinds)
    panels = list(_panels(sheet, rows, kinds, column="kind"))
    for axes, here in panels:
        _lines(axes, here, rows, "sigma", "rel_l2")
    _log_log([axes for axes, _ in panels])
    sheet.label("sigma", "rel-L2")
    return sheet.figure


def bytes_figure(errors: pd.DataFrame, default_revisions: Mapping[str, str]) -> Figure:
    """rel-L2 of a whole token against its bytes, with the front that no other format beats on both."""
    rows = _drawn(errors, default_revisions)
    sources = shown_sources(rows)
    columns = min(2, len(sources))
    title, subtitle = "Error against bytes per token", "NoPE and RoPE together; line: no format is better in both"
    handles = _handles(rows, linestyle="")
    sheet = Sheet(math.ceil(len(sources) / columns), columns, title, subtitle, handles, least_width=WIDE)
    panels = [sheet.panel(*divmod(number, columns), source) for number, source in enumerate(sources)]
    for axes, source in zip(panels, sources, strict=True):
        here = rows[(rows["data"] == source) & (rows["part"] == "both")]
        _front(axes, here)
        _lines(axes, here, rows, "bytes_per_token", "rel_l2", linestyle="")
        axes.set_xlim(0, 1.06 * rows["bytes_per_token"].max())
        axes.xaxis.set_major_locator(MaxNLocator(6))
        plain_numbers(axes.xaxis)
    _shared_errors(panels, columns)
    sheet.label("bytes per token", "rel-L2")
    return sheet.figure


def tiles_figure(errors: pd.DataFrame, tiles: pd.DataFrame, default_revisions: Mapping[str, str]) -> Figure:
    """How the rel-L2 of tiles of 16 values is distributed."""
    rows = _drawn(errors, default_revisions)
    sources = shown_sources(rows)
    subtitle = "rel-L2 of 16 neighbouring values; quarter octaves"
    sheet = _sheet(rows, "Error of tiles", subtitle, sources)
    for axes, here in _panels(sheet, rows, sources):
        for style, line in _styled(here, rows):
            found = tiles[(tiles["variant"] == line["variant"].iloc[0]) & (tiles["part"] == line["part"].iloc[0])]
            known = found[found["error_from"] > 0]
            if not known.empty:
                edges, shares = _outline(known, int(found["tiles"].sum()))
                axes.step(edges, shares, where="post", **{**style, "marker": ""})
        axes.set_xscale("log")
        axes.set_ylim(0, None)
        _error_axis(axes.xaxis)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    sheet.label("rel-L2 of a tile", "share of tiles (%)")
    return sheet.figure


def _drawn(errors: pd.DataFrame, default_revisions: Mapping[str, str]) -> pd.DataFrame:
    rows = of_one_provider(named(errors, default_revisions))
    if rows.empty:
        raise NothingToPlotError("no format was measured")
    return rows


def _sheet(rows: pd.DataFrame, title: str, subtitle: str, panels: list[str]) -> Sheet:
    only = rows["only"].dropna().unique()
    subtitle += f"; only {'NoPE' if only[0] == 'nope' else 'RoPE'} quantized" if len(only) else ""
    return Sheet(len(panels), 2, title, subtitle, _handles(rows), least_width=WIDE)


def _handles(rows: pd.DataFrame, **changes: Any) -> list[Line2D]:
    """A handle for each line that has an error somewhere."""
    return [
        Line2D([], [], label=str(line["label"].iloc[0]), **{**style, "linewidth": 1.5, "markersize": 5, **changes})
        for style, line in _styled(rows, rows)
        if (line["rel_l2"] > 0).any()
    ]


def _panels(
    sheet: Sheet, rows: pd.DataFrame, names: list[str], column: str = "data"
) -> Iterator[tuple[Axes, pd.DataFrame]]:
    """Axes for every name (a row) and part (a column), with the rows to draw there."""
    for number, name in enumerate(names):
        for place, part in enumerate(("NoPE", "RoPE")):
            here = rows[(rows[column] == name) & (rows["part"] == part)]
            yield sheet.panel(number, place, f"{part} · {name}"), here


def _styled(here: pd.DataFrame, rows: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """The lines of a panel with their styles, which are the same in all panels of ``rows``.

    Later lines are thinner, so that one shows around another that it coincides with.
    """
    labels = list(rows["label"].unique())
    for number, label in enumerate(labels):
        share = number / max(1, len(labels) - 1)
        line = here[here["label"] == label]
        if not line.empty:
            yield (
                {
                    "color": COLOURS[number % len(COLOURS)],
                    # A step further each time round the colours: no two lines share both.
                    "marker": MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],
                    "linestyle": DASHES[number % len(DASHES)],
                    "linewidth": 3.2 - 2.0 * share,
                    "markersize": 8.5 - 4.5 * share,
                },
                line,
            )


def _lines(axes: Axes, here: pd.DataFrame, rows: pd.DataFrame, x: str, y: str, **changes: Any) -> None:
    """A line per variant over what is positive; the names of those that have no error at all."""
    exact = []
    for style, line in _styled(here, rows):
        known = line.dropna(subset=[x, y]).sort_values(x)
        positive = known[known[y] > 0]
        if positive.empty and not known.empty:
            where = f" ({known[x].iloc[0]} bytes)" if x == "bytes_per_token" else ""
            exact.append(f"{line['label'].iloc[0]}{where}")
        axes.plot(positive[x].to_numpy(float), positive[y].to_numpy(float), **{**style, **changes})
    if exact:
        text = textwrap.fill("no error: " + ", ".join(exact), PANEL_LETTERS)
        axes.text(0.02, 0.03, text, transform=axes.transAxes, color=GREY, fontsize=SMALL, parse_math=False, va="bottom",
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip


def _front(axes: Axes, here: pd.DataFrame) -> None:
    """The staircase of formats that none beats in bytes and error."""
    known = here[here["rel_l2"].notna()].sort_values(["bytes_per_token", "rel_l2"])
    best = known[known["rel_l2"] < known["rel_l2"].cummin().shift(fill_value=math.inf)]
    best = best[best["rel_l2"] > 0]
    if not best.empty:
        bytes_per_token, error = best["bytes_per_token"].to_numpy(float), best["rel_l2"].to_numpy(float)
        axes.step(bytes_per_token, error, where="post", color=GREY, linewidth=1.2, zorder=1)


def _outline(tiles: pd.DataFrame, total: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Edges and heights (%) of a histogram as a line that starts and ends at 0, gaps drawn as 0."""
    ordered = tiles.sort_values("error_from")
    edges: list[float] = [float(ordered["error_from"].iloc[0])]
    shares: list[float] = [0.0]
    for low, high, count in ordered[["error_from", "error_to", "tiles"]].astype(float).to_numpy():
        if low > edges[-1]:
            edges.append(low)
            shares.append(0.0)
        shares[-1] = 100 * count / total
        edges.append(high)
        shares.append(0.0)
    return np.array([edges[0], *edges]), np.array([0.0, *shares])


def _log_log(panels: list[Axes]) -> None:
    """Logarithmic axes in every panel of two columns."""
    for axes in panels:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _shared_errors(panels, 2)


def _shared_errors(panels: list[Axes], columns: int) -> None:
    """One logarithmic axis of errors for all panels, with room below for their notes."""
    drawn = [float(y) for axes in panels for line in axes.lines for y in np.asarray(line.get_ydata(), float)]
    low, high = (min(drawn), max(drawn)) if drawn else (0.1, 1.0)
    lines = max((text.get_text().count("\n") + 1 for axes in panels for text in axes.texts), default=0)
    room = max(2.0, (high / low) ** (0.08 + 0.12 * lines))
    for number, axes in enumerate(panels):
        axes.set_yscale("log")
        axes.set_ylim(low / room, high * 1.25)
        axes.tick_params(labelleft=number % columns == 0)
        _error_axis(axes.yaxis)


def _error_axis(axis: Axis) -> None:
    """Label errors 0.01, 0.1, 1, with steps of 2 and 5 between where the axis spans little."""
    low, high = axis.get_view_interval()
    few = low > 0 and high / low < 30
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
