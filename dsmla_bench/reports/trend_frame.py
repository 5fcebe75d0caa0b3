"""From the rows of a history to trends: one per row, metric and GPU model, with its segments and judged changes.

Figures of rows that are not ok are left out; a trend's ``status`` and ``reason`` are those of the newest run that has
the row. A *change* is a change point of ``trends`` within figures that may be compared (``segments``), with the last
figure before and the first after it: the range to bisect. Where both are of one commit, nothing that is in the
repository has caused it.

A change for the worse raises an alarm while it is news: its first figure is among the ten newest of its series, no
later change has taken it back, nor has the ruler changed since, and the series still lives (its newest figure is at
most seven days older than the newest of its table).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pandas as pd

from dsmla_bench.history import EVERYTHING, History, Part
from dsmla_bench.history_rows import TABLES, HistoryError
from dsmla_bench.reports.metrics import EXACT_TOLERANCE, METRICS, Metric
from dsmla_bench.reports.segments import KERNEL, MARKS, Integers, Segment, segments_of, stretches
from dsmla_bench.reports.statistics import Floats
from dsmla_bench.reports.trend_names import order_of
from dsmla_bench.reports.trends import (
    LEAST_CHANGE,
    LEAST_SEGMENT,
    ChangePoint,
    change_points,
    exact_changes,
    relative,
    screen,
)

RECENT = 10
LIVE = timedelta(days=7)
RUN = ["run_id", "started_at", "commit", "device", "device_uuid", "driver", "tool_version", "packages"]
LEAST = {"noise": 2 * LEAST_SEGMENT, "exact": 2}
"""Figures on one ruler that a rule needs to show a change."""
FIGURES = ("ok", "compiled")
"""The statuses of rows that have figures."""


@dataclass(frozen=True)
class Watched:
    """A column that is drawn, and the rule that finds its changes: "none" where it follows from another column.

    lower, upper, quantum   columns of its interval and of what the clock resolves, where there are such
    """

    column: str
    rule: Literal["noise", "exact", "none"]
    lower: str | None = None
    upper: str | None = None
    quantum: str | None = None

    @property
    def metric(self) -> Metric:
        """Its name, unit and direction."""
        return METRICS[self.column]

    @property
    def columns(self) -> list[str]:
        """All columns named here."""
        return [name for name in (self.column, self.lower, self.upper, self.quantum) if name]


WATCHED: dict[str, tuple[Watched, ...]] = {
    "rows": (
        Watched("us", "noise", "us_lo", "us_hi", "quantum_us"),
        Watched("kcycles", "none"),
        Watched("gbps", "none"),
        Watched("bound_share", "none"),
        Watched("predicted_us", "exact"),
    ),
    "errors": tuple(Watched(name, "exact") for name in ("rel_l2", "snr_db", "max_abs", "mean_bias", "tile_p99")),
    "scores": (Watched("accuracy", "noise", "accuracy_lo", "accuracy_hi"),),
}
"""Table of a history → what is drawn of it. Another metric is an entry here and in ``metrics.METRICS``."""


@dataclass(frozen=True)
class Change:
    """A level that changed between the figures ``good`` and ``bad``, which are numbers of a trend.

    before, after   the levels
    is_news         an alarm may be raised for it
    kernel          the machine code is another after it
    """

    good: int
    bad: int
    before: float
    after: float
    verdict: Literal["worse", "better"]
    is_news: bool
    kernel: bool


@dataclass(frozen=True)
class Trend:
    """The figures of one row, metric and GPU model, by time. Arrays have one element per figure.

    axes        what the row is about: its axes that are defined, and ``device``
    status, reason, is_live   of the newest run that has the row; whether that is one of the newest runs of all
    runs        the line of ``Trends.runs`` that a figure is from
    kernels     hash of the machine code, None where it is unknown
    is_judged   whether there are enough figures on the newest ruler to show a change
    suspicions  newest figures of a series that are unlike those before, which one figure cannot prove
    """

    watched: Watched
    row_id: str
    axes: Mapping[str, Any]
    status: str
    reason: str | None
    is_live: bool
    runs: Integers
    kernels: list[str | None]
    figures: Floats
    lower: Floats | None
    upper: Floats | None
    segments: list[Segment]
    is_judged: bool
    changes: list[Change]
    suspicions: list[Change]

    @property
    def regressions(self) -> list[Change]:
        """The changes that an alarm is raised for."""
        return [change for change in self.changes if change.is_news and change.verdict == "worse"]


@dataclass(frozen=True)
class Trends:
    """The trends of one table; ``runs`` has a line per run and device, by time, with the columns ``RUN``."""

    table: str
    runs: pd.DataFrame
    trends: list[Trend]


def columns_of(table: str) -> list[str]:
    """The columns of a history, beside those of every table, that ``trends_of`` needs."""
    drawn = [name for watched in WATCHED[table] for name in watched.columns]
    return list(dict.fromkeys([*TABLES[table].axes, "status", "reason", *MARKS, *drawn]))


def read_trends(history: History, part: Part = EVERYTHING) -> list[Trends]:
    """The trends of every table that has some, in that part of the history.

    Raises HistoryError when none has or the history cannot be read.
    """
    tables = [trends_of(history.frame(table, columns_of(table), part), table) for table in WATCHED]
    known = [trends for trends in tables if trends.trends]
    if not known:
        raise HistoryError(f"{history.url}: holds no run with a figure{part}; add one with `dsmla-bench history add`")
    return known


def trends_of(rows: pd.DataFrame, table: str) -> Trends:
    """The trends in ``rows``, as ``History.frame`` gives them by time; metrics that a row never had are left out."""
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *columns_of(table)])))
    line = rows.groupby(["run_id", "device_uuid"], sort=False, observed=True, dropna=False).ngroup()
    runs = rows.loc[~line.duplicated(), RUN].reset_index(drop=True)
    groups = rows.assign(run=line).groupby(["row_id", "device"], sort=False, observed=True)
    found = [
        _trend(group, table, watched, runs)
        for _, group in groups
        for watched in WATCHED[table]
        if group[watched.column].notna().any()
    ]
    return Trends(table, runs, found)


def rows_of(trends: Iterable[Trend]) -> list[list[Trend]]:
    """The trends by row and GPU model: one list for each, in the order in which rows are shown."""
    rows: dict[tuple[str, str], list[Trend]] = {}
    for trend in trends:
        rows.setdefault((trend.row_id, str(trend.axes["device"])), []).append(trend)
    return sorted(rows.values(), key=lambda row: order_of(row[0].axes))


def _trend(group: pd.DataFrame, table: str, watched: Watched, runs: pd.DataFrame) -> Trend:
    newest = group.iloc[-1]
    has_figure = group["status"].isin(FIGURES) & np.isfinite(group[watched.column].astype(float))
    drawn = group.loc[has_figure, [*MARKS, "run", "started_at", *watched.columns]]
    axes = {name: newest[name] for name in [*TABLES[table].axes, "device"] if pd.notna(newest[name])}
    oldest_alive = runs["started_at"].iloc[-1] - LIVE
    comparable = list(_stretches(drawn, watched, oldest_alive))
    return Trend(
        watched=watched,
        row_id=str(newest["row_id"]),
        axes={name: int(value) if _is_whole(value) else value for name, value in axes.items()},
        status=str(newest["status"]),
        reason=None if pd.isna(newest["reason"]) else str(newest["reason"]),
        is_live=bool(newest["started_at"] >= oldest_alive),
        runs=drawn["run"].to_numpy(np.int64),
        kernels=drawn[KERNEL].astype(object).where(drawn[KERNEL].notna(), None).tolist(),
        figures=drawn[watched.column].to_numpy(float),
        lower=drawn[watched.lower].to_numpy(float) if watched.lower else None,
        upper=drawn[watched.upper].to_numpy(float) if watched.upper else None,
        segments=segments_of(drawn),
        is_judged=any(stretch.is_judged(watched) for stretch in comparable),
        changes=[change for stretch in comparable for change in stretch.changes(watched)],
        suspicions=[change for stretch in comparable for change in stretch.suspicions(watched)],
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


@dataclass(frozen=True)
class _Stretch:
    """Figures that may be compared: their numbers in the trend, what the clock resolves, codes of their machine code.

    is_watched   whether an alarm may be raised for the newest of them
    """

    numbers: Integers
    figures: Floats
    quantum: float
    kernels: Integers
    is_watched: bool

    def is_judged(self, watched: Watched) -> bool:
        """Whether these are the newest figures, and as many as the rule of the column needs."""
        return self.is_watched and len(self.figures) >= LEAST.get(watched.rule, 1)

    def changes(self, watched: Watched) -> list[Change]:
        """The changes of level, by the rule of the column."""
        if watched.rule == "none":
            return []
        exact = watched.rule == "exact"
        points = exact_changes(self.figures) if exact else change_points(self.figures, self.quantum)
        least = EXACT_TOLERANCE if exact else LEAST_CHANGE
        return [
            self._change(watched, point, _stands(watched.metric, point, points[-1].after, least)) for point in points
        ]

    def suspicions(self, watched: Watched) -> list[Change]:
        """The newest figure, where it is unlike those before it on its level."""
        if watched.rule != "noise" or not self.is_watched:
            return []
        level = max((point.index for point in change_points(self.figures, self.quantum)), default=0)
        point = screen(self.figures[level:], self.quantum)
        if point is None:
            return []
        return [self._change(watched, dataclasses.replace(point, index=level + point.index), stands=True)]

    def _change(self, watched: Watched, point: ChangePoint, stands: bool) -> Change:
        good, bad = point.index - 1, point.index
        return Change(
            good=int(self.numbers[good]),
            bad=int(self.numbers[bad]),
            before=point.before,
            after=point.after,
            verdict="worse" if _is_worse(watched.metric, point.before, point.after) else "better",
            is_news=self.is_watched and stands and bad >= len(self.numbers) - RECENT,
            kernel=bool(-1 != self.kernels[good] != self.kernels[bad] != -1),
        )


def _stretches(drawn: pd.DataFrame, watched: Watched, oldest_alive: pd.Timestamp) -> Iterator[_Stretch]:
    figures, started = drawn[watched.column].to_numpy(float), drawn["started_at"]
    quanta = drawn[watched.quantum].to_numpy(float) if watched.quantum else np.zeros(len(drawn))
    kernels = pd.factorize(drawn[KERNEL])[0].astype(np.int64)
    for numbers, is_newest in stretches(drawn):
        known = quanta[numbers][np.isfinite(quanta[numbers])]
        quantum = float(np.median(known)) if len(known) else 0.0
        is_watched = is_newest and bool(started.iloc[numbers[-1]] >= oldest_alive)
        yield _Stretch(numbers, figures[numbers], quantum, kernels[numbers], is_watched)


def _is_worse(metric: Metric, before: float, after: float) -> bool:
    return metric.badness(after) > metric.badness(before)


def _stands(metric: Metric, point: ChangePoint, now: float, least: float) -> bool:
    """Whether the level of now is still on the side of ``point.before`` that the change went to."""
    same_side = _is_worse(metric, point.before, now) == _is_worse(metric, point.before, point.after)
    return same_side and abs(relative(point.before, now)) >= least
