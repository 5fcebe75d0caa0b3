"""What exporters read: a run's rows with their names, axes, statuses and finite figures, whatever the run measured.

Of kernels and errors the figures are those that a history watches; of accuracy runs they are the scores. A row's name
is the same in every run that has the row: it spells out its axes, but for those that have a case's default value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsmla_bench.history_rows import TABLES
from dsmla_bench.reports.metrics import METRICS, Metric
from dsmla_bench.reports.run_sections import ACCURACY
from dsmla_bench.reports.trend_frame import FIGURES, WATCHED
from dsmla_bench.reports.trend_names import MAIN_AXES, title_of
from dsmla_bench.results import Run, RunError
from dsmla_bench.rows import Case

SCORE_AXES = ("format", "task", "filter", "metric")
_DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(Case) if field.default is not dataclasses.MISSING
}
"""Axes that a case need not name."""


@dataclass(frozen=True)
class Figure:
    """A finite figure of a row, in the unit of its metric; ``lower`` and ``upper`` where it has an interval."""

    column: str
    metric: Metric
    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class ExportedRow:
    """A row of a run. ``axes`` are those that it has; ``figures`` is () unless its status is ok or compiled."""

    name: str
    axes: Mapping[str, Any]
    status: str
    reason: str
    figures: tuple[Figure, ...]


def exported_rows(run: Run) -> list[ExportedRow]:
    """Every row of the run. Raises RunError when the run has none, so that nothing is published as an empty success."""
    found = [*_table_rows(run.rows(), "rows")]
    if run.has_table("errors"):
        found += _table_rows(run.table("errors"), "errors")
    if run.manifest.get("kind") == ACCURACY:
        found += _score_rows(run.table("scores"))
    if not found:
        raise RunError(f"{run.path}: holds no row to export")
    return found


def _table_rows(rows: pd.DataFrame, table: str) -> Iterator[ExportedRow]:
    for row in rows.to_dict("records"):
        axes = _known({name: row.get(name) for name in TABLES[table].axes})
        has_figures = row["status"] in FIGURES
        figures = [
            Figure(
                watched.column,
                watched.metric,
                float(row[watched.column]),
                _bound(row, watched.lower),
                _bound(row, watched.upper),
            )
            for watched in WATCHED[table]
            if has_figures and _is_finite(row[watched.column])
        ]
        reason = "" if pd.isna(row["reason"]) else str(row["reason"])
        yield ExportedRow(_name(axes), axes, str(row["status"]), reason, tuple(figures))


def _score_rows(scores: pd.DataFrame) -> Iterator[ExportedRow]:
    for row in scores.to_dict("records"):
        axes = _known({name: row[name] for name in SCORE_AXES if row[name] != "none"})
        if pd.isna(row["higher_is_better"]) or not _is_finite(row["score"]):
            reason = "it has no score, or nobody says which way is better"
            yield ExportedRow(_name(axes), axes, "skipped", reason, ())
            continue
        label = METRICS["accuracy"].label if row["bounded"] else "score"
        metric = Metric(label, "", "higher" if row["higher_is_better"] else "lower")
        yield ExportedRow(_name(axes), axes, "ok", "", (Figure("score", metric, float(row["score"])),))


def _bound(row: Mapping[Any, Any], column: str | None) -> float | None:
    return float(row[column]) if column is not None and _is_finite(row[column]) else None


def _known(axes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in axes.items() if not pd.isna(value)}


def _name(axes: Mapping[str, Any]) -> str:
    """ "write fp8_ds_mla:pow2 triton, arch sm90, tokens 128, …"."""
    titled = {"revision", *MAIN_AXES} - {"arch", "device"}
    others = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in axes.items()
        if name not in titled and _DEFAULTS.get(name, value is None) != value
    ]
    return ", ".join(filter(None, [title_of(axes), *others]))


def _is_finite(value: Any) -> bool:
    return not pd.isna(value) and math.isfinite(value)
