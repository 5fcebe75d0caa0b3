"""What a history has to tell of its newest runs: regressions, rows without a figure, unusual figures. Pure.

    regression   a change for the worse that is news (``trend_frame``): its figures confirm it, and it names the commits
                 to bisect
    no figure    the newest run that has the row found it incorrect, or could not measure it
    unusual      one newest figure is unlike those before: no proof, but a reason to measure again, in pairs

The first two fail a check. Series that have ended raise nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from dsmla_bench.reports.tables import significant
from dsmla_bench.reports.trend_frame import LEAST, Change, Trend, Trends, rows_of
from dsmla_bench.reports.trend_names import shapes_of, title_of
from dsmla_bench.rows import FINDINGS

Kind = Literal["regression", "no figure", "unusual"]


@dataclass(frozen=True)
class Finding:
    """One of the above: ``text`` says what of ``row``. The other fields are of a change, None without one.

    metric          the column that changed, from the level ``before`` to ``after``
    good, bad       last run and commit before the change, first ones after it
    new_kernel      the machine code changed between them
    """

    kind: Kind
    row: str
    text: str
    metric: str | None = None
    before: float | None = None
    after: float | None = None
    good_run: str | None = None
    bad_run: str | None = None
    good_commit: str | None = None
    bad_commit: str | None = None
    new_kernel: bool | None = None

    @property
    def fails(self) -> bool:
        """Whether a check must not pass."""
        return self.kind != "unusual"

    def __str__(self) -> str:
        return f"{self.kind}: {self.row}: {self.text}"


def findings_of(tables: Iterable[Trends]) -> list[Finding]:
    """All findings: those that fail a check first, then by row."""
    found = [finding for trends in tables for finding in _of_table(trends)]
    return sorted(found, key=lambda finding: not finding.fails)


def outcome(tables: Iterable[Trends], found: Sequence[Finding]) -> str:
    """The result in one line: "58 rows: 2 worse, 1 unusual", and how many rows have too few figures to compare."""
    rows = [row for trends in tables for row in rows_of(trends.trends)]
    failing = sum(finding.fails for finding in found)
    number = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    counts = f"{number}: {failing} worse, {len(found) - failing} unusual"
    young = sum(row[0].is_live and not row[0].is_judged for row in rows)
    if not young:
        return counts
    needs = f"a change shows in {LEAST['noise']} runs of a time, in {LEAST['exact']} of what repeats exactly"
    if young == len(rows) and not found:
        return f"Nothing settled: {number}, all with too few figures to compare; {needs}"
    return f"{counts}; {young} of them with too few figures to compare: {needs}"


def _of_table(trends: Trends) -> Iterator[Finding]:
    rows = rows_of(trends.trends)
    for row, shape in zip(rows, shapes_of([row[0].axes for row in rows]), strict=True):
        first = row[0]
        name = ", ".join(filter(None, (title_of(first.axes), shape, str(first.axes["device"]))))
        if first.is_live and first.status in FINDINGS:
            yield Finding("no figure", name, f"{first.status}: {first.reason}")
        for trend in row:
            for change in trend.regressions:
                yield _of_change("regression", name, trend, change, trends.runs)
            for change in trend.suspicions:
                yield _of_change("unusual", name, trend, change, trends.runs)


def _of_change(kind: Kind, name: str, trend: Trend, change: Change, runs: pd.DataFrame) -> Finding:
    metric = trend.watched.metric
    good, bad = (runs.iloc[trend.runs[number]] for number in (change.good, change.bad))
    levels = f"{significant(change.before)} → {significant(change.after)} {metric.unit}".strip()
    size = metric.change(change.before, change.after)
    commits = [None if pd.isna(run["commit"]) else str(run["commit"]) for run in (good, bad)]
    return Finding(
        kind=kind,
        row=name,
        text=f"{metric.label} {size} ({levels}) since {bad['started_at']:%Y-%m-%d}",
        metric=trend.watched.column,
        before=change.before,
        after=change.after,
        good_run=str(good["run_id"]),
        bad_run=str(bad["run_id"]),
        good_commit=commits[0],
        bad_commit=commits[1],
        new_kernel=change.kernel,
    )


def advice(finding: Finding) -> str:
    """What to do about it, or "" where the finding's reason says so."""
    if finding.bad_run is None:
        return ""
    good, bad = finding.good_commit, finding.bad_commit
    if finding.kind == "unusual":
        return f"one figure proves nothing: measure commits {good or 'before'} and {bad or 'now'} in pairs"
    kernel = "; the kernel's machine code changed with it" if finding.new_kernel else ""
    if good is None or bad is None:
        return f"look between the runs {finding.good_run} and {finding.bad_run}{kernel}"
    if good == bad:
        return f"both runs are of commit {bad}, so no commit caused it: look at the machine{kernel}"
    return f"git bisect start {bad} {good}{kernel}"
