"""The picture of what formats trade: bytes against error, bytes against time, error against time.

A format is a point with a colour and a marker of its own, the same in all panels. It is hollow where another format is
at least as good in all three and better in one. The grey staircase of a panel joins what no other beats in its two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.measures import Measure
from dsmla_bench.reports.plots import point_style
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet, plain_numbers

READS = ("decode", "gather")
"""Whose time is taken where it was measured: the operations that a step of decoding waits for."""
LABELS = {"bytes": "bytes per token", "time": "time (µs)", "error": "rel-L2"}
PANELS = (("bytes", "error"), ("bytes", "time"), ("error", "time"))

Points = dict[str, dict[str, float]]
"""Format → its cost by subject."""


def pareto_figure(measures: Sequence[Measure]) -> Figure:
    """The picture that the module docstring describes.

    Raises NothingToPlotError when fewer than two formats have bytes, a time and an error.
    """
    chosen = _chosen(measures)
    lacking = [subject for subject in ("bytes", "time", "error") if subject not in chosen]
    if lacking:
        raise NothingToPlotError(f"the runs hold no {' and no '.join(lacking)} of formats")
    points = _points(chosen)
    if len(points) < 2:
        raise NothingToPlotError("fewer than two formats have bytes, a time and an error")
    handles = [Line2D([], [], label=name, **_style(points, name)) for name in points]
    time, error = chosen["time"], chosen["error"]
    subtitle = (
        f"{time.label} of {time.group}; {error.label} of {error.group.removeprefix('error, ')}. "
        "Lower is better everywhere. Line: the best of two; hollow: another format is as good in all three"
    )
    title = "Bytes, time and error of every format"
    sheet = Sheet(len(PANELS), 1, title, subtitle, handles, left=0.9, least_width=5.4, row_gap=0.7)
    for number, (x, y) in enumerate(PANELS):
        axes = sheet.panel(number, 0, "")
        _draw(axes, points, x, y)
        axes.set_xlabel(LABELS[x], fontsize=SMALL)
        axes.set_ylabel(LABELS[y], fontsize=SMALL)
    sheet.figure.set_label(f"{title}: {'; '.join(f'{LABELS[y]} against {LABELS[x]}' for x, y in PANELS)}. {subtitle}")
    return sheet.figure


def _chosen(measures: Sequence[Measure]) -> dict[str, Measure]:
    """The measure of every subject: of times that of an operation in ``READS``, else the first."""
    times = [measure for measure in measures if measure.subject == "time"]
    read = [measure for name in READS for measure in times if measure.group.startswith(f"{name},")]
    ordered = [*read, *times, *(measure for measure in measures if measure.subject in ("bytes", "error"))]
    return {measure.subject: measure for measure in reversed(ordered)}


def _points(chosen: Mapping[str, Measure]) -> Points:
    names = [name for name in chosen["bytes"].values if all(name in measure.values for measure in chosen.values())]
    names.sort(key=lambda name: (-chosen["bytes"].values[name], name))
    return {name: {subject: measure.values[name] for subject, measure in chosen.items()} for name in names}


def _style(points: Points, name: str) -> dict[str, Any]:
    style = {**point_style(list(points).index(name)), "markersize": 7}
    return style | ({"markerfacecolor": "white"} if _is_dominated(points, name) else {})


def _is_dominated(points: Points, name: str) -> bool:
    """Whether another format is at least as good in all costs and better in one."""
    own = points[name]
    others = [costs for other, costs in points.items() if other != name]
    return any(all(costs[s] <= own[s] for s in own) and any(costs[s] < own[s] for s in own) for costs in others)


def _draw(axes: Axes, points: Points, x: str, y: str) -> None:
    """One panel: the front of two costs, and a point per format. An error of 0 stands at the edge, as it has no log."""
    left = _scale(axes.xaxis, axes.set_xscale, axes.set_xlim, [costs[x] for costs in points.values()], x)
    bottom = _scale(axes.yaxis, axes.set_yscale, axes.set_ylim, [costs[y] for costs in points.values()], y)
    places = {name: (max(costs[x], left), max(costs[y], bottom)) for name, costs in points.items()}
    front: list[tuple[float, float]] = []
    for place in sorted(places.values()):
        if not front or place[1] < front[-1][1]:
            front.append(place)
    axes.step(*zip(*front, strict=True), where="post", color=GREY, linewidth=1.2, zorder=1)
    for name, (across, up) in places.items():
        axes.plot([across], [up], **_style(points, name), zorder=3, clip_on=False)


def _scale(
    axis: Axis,
    scale: Callable[[str], None],
    limit: Callable[[float, float], Any],
    values: Sequence[float],
    subject: str,
) -> float:
    """Bytes and times from 0; errors logarithmic, with "none" at the lower end where one is 0. Returns that end."""
    if subject != "error":
        limit(0, 1.08 * max(values))
        axis.set_major_locator(MaxNLocator(6))
        plain_numbers(axis)
        return 0.0
    positive = [value for value in values if value > 0] or [1.0]
    lowest, highest = min(positive) / 4, max(positive) * 2
    scale("log")
    limit(lowest, highest)
    located = LogLocator(subs=(1.0, 2.0, 5.0) if highest / lowest < 100 else (1.0,), numticks=12)
    ticks = {tick: f"{tick:g}" for tick in located.tick_values(lowest, highest) if lowest < tick <= highest}
    ticks |= {lowest: "none"} if min(values) == 0 else {}
    axis.set_ticks(list(ticks), list(ticks.values()))
    axis.set_minor_locator(NullLocator())
    return lowest
