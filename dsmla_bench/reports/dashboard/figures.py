"""From trends to the plain data that the dashboard's pages read; the pages' scripts say how they use it. Pure.

Figures keep six digits. Undefined is None, and nothing here is rounded to be read: the pages do that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from dsmla_bench.reports.statistics import Floats
from dsmla_bench.reports.trend_frame import FIGURES, Change, Trend, Trends
from dsmla_bench.reports.trend_names import MAIN_AXES, format_of, shapes_of, title_of

TITLES = {"rows": "Kernels", "errors": "Error", "scores": "Tasks"}
"""What a table's figures are called; its own name where there is none."""
RUN_COLUMNS = ("run_id", "started_at", "commit", "device", "device_uuid", "driver", "tool_version")


def run_data(trends: Trends) -> list[dict[str, Any]]:
    """A record per line of ``trends.runs``; ``started_at`` is in UTC."""
    runs = trends.runs[list(RUN_COLUMNS)].astype(object)
    runs["started_at"] = trends.runs["started_at"].dt.strftime("%Y-%m-%dT%H:%M:%S")
    plain = runs.where(runs.notna(), None)
    return [{str(name): value for name, value in run.items()} for run in plain.to_dict("records")]


def metric_data(trends: Trends) -> dict[str, Any]:
    """Column → name, unit and direction of the metrics that have a figure, in the order in which they are watched."""
    metrics = {trend.watched.column: trend.watched.metric for trend in trends.trends if len(trend.figures)}
    return {column: vars(metric) for column, metric in metrics.items()}


def row_entries(trends: Trends, rows: Sequence[Sequence[Trend]]) -> list[dict[str, Any]]:
    """The catalogue's entries of one table: a record per row, whose figures are in the file that it names."""
    shapes = shapes_of([row[0].axes for row in rows])
    return [
        _entry(trends.table, number, row, shape) for number, (row, shape) in enumerate(zip(rows, shapes, strict=True))
    ]


def _entry(table: str, number: int, row: Sequence[Trend], shape: str) -> dict[str, Any]:
    first = row[0]
    axes = first.axes
    return {
        "table": table,
        "file": f"{table}-{number}",
        **{axis: None if axis not in axes else str(axes[axis]) for axis in MAIN_AXES},
        "format": format_of(axes),
        "title": title_of(axes),
        "shape": shape,
        "status": first.status,
        "reason": first.reason,
        "is_ok": first.status in FIGURES,
        "latest": {trend.watched.column: _latest(trend) for trend in row if len(trend.figures)},
    }


def _latest(trend: Trend) -> dict[str, Any]:
    change = max(trend.changes, key=lambda change: (change.is_news, change.bad), default=None)
    return {
        "value": six_digits(trend.figures[-1]),
        "run": int(trend.runs[-1]),
        "change": None if change is None else {**_change(change), "run": int(trend.runs[change.bad])},
        "unusual": bool(trend.suspicions),
    }


def _change(change: Change) -> dict[str, Any]:
    return {**vars(change), "before": six_digits(change.before), "after": six_digits(change.after)}


def trend_data(trend: Trend) -> dict[str, Any]:
    """All figures of a trend."""
    return {
        "runs": trend.runs.tolist(),
        "figures": _figures(trend.figures),
        "lower": _figures(trend.lower),
        "upper": _figures(trend.upper),
        "kernels": [None if kernel is None else kernel[:8] for kernel in trend.kernels],
        "segments": [vars(segment) for segment in trend.segments],
        "changes": [_change(change) for change in trend.changes],
    }


def _figures(values: Floats | None) -> list[float | None] | None:
    return None if values is None else [six_digits(value) for value in values.tolist()]


def six_digits(value: float) -> float | None:
    """The value to six significant digits; None for one that is not finite, which JSON has no word for."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def summary(tables: Iterable[Trends]) -> str:
    """How many runs there are, on which GPU models, from when to when; of one table at least."""
    frames = [trends.runs for trends in tables]
    runs = {run for frame in frames for run in frame["run_id"]}
    devices = ", ".join(sorted({device for frame in frames for device in frame["device"]}))
    first, last = min(frame["started_at"].min() for frame in frames), max(frame["started_at"].max() for frame in frames)
    return f"{len(runs)} run{'s' * (len(runs) != 1)} on {devices}, {first:%Y-%m-%d} to {last:%Y-%m-%d}"
