"""Judged task scores as text: what every format costs, verdict first, and what others have published.

One table puts formats side by side, one per format has every figure, one shows fidelity. Accuracies are in percent and
their deltas in points, perplexities differ in percent, all else in the metric's own unit. A dash is undefined. The
notes say what the scores could have shown; the reasons, what a reader must know of single rows.

Frames: ``judged`` has the columns of an accuracy run's judged.parquet, ``fidelity`` those of fidelity.parquet (one row
per format), ``published`` those of the published table. Nothing is judged here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from dsmla_bench.reports.accuracy_text import (
    Row,
    between,
    delta_text,
    interval_text,
    metric_text,
    p_text,
    percent_text,
    resolution_text,
    row_name,
    score_text,
    verdict_text,
)
from dsmla_bench.reports.error_tables import compact
from dsmla_bench.reports.tables import UNDEFINED, Column, KernelTables, Table

ORDER = ("worse", "inconclusive", "not comparable", "not significant", "non-inferior", "equivalent")
"""Verdicts as a headline lists them: what needs attention first."""
NOTES = (
    "Δ: format minus baseline, points (pt) for accuracies, % for perplexities, else the metric's unit; 95 %: its "
    "interval, by Tango's score method, a bootstrap-t over documents or clusters (Student's t where "
    "differences are negligible), or the normal one where unpaired",
    "verdicts: equivalent, within the margin on both sides (two one-sided tests at 5 %); non-inferior, no loss beyond "
    "the margin; worse, a loss by the 95 % interval and by p after Holm's correction over all rows of the format; "
    "inconclusive (n): n documents would settle it with 80 % power",
)
UNPAIRED = (
    "unpaired: without documents' scores, scores are compared as if of different documents, and a difference that is "
    "not significant is not a result"
)
KL_NOTE = (
    "KL: of the baseline's next-token distribution to the format's; top-1: positions whose likeliest token is the "
    "same; log-probability: of the token that follows"
)
FLOOR_NOTE = "{} is the floor: the baseline computed again; a format at the floor cannot be told from a rerun"
PUBLISHED_NOTE = (
    "resolution of a published difference: the smallest that such a comparison shows with 80 % power, from the "
    "standard errors of two independent scores (questions without their repeats; KL: deviation over repeats); p: of no "
    "difference"
)
FEW = 3
"""Scores that a sentence names one by one."""
NAMED = ("worse", "not comparable")
KEYS = ["task", "filter", "metric"]
KL = {"kl_mean": "mean", "kl_median": "median", "kl_p95": "p95", "kl_p99": "p99", "kl_max": "max"}
LOGPROB = ("delta_logprob", "delta_logprob_lo", "delta_logprob_hi")
FIDELITY = ("bytes_per_token", *KL, "top1_agreement")


def accuracy_tables(judged: pd.DataFrame, fidelity: pd.DataFrame | None = None, *, title: str = "") -> KernelTables:
    """The tables of an accuracy run. ``judged`` may hold several formats and is not empty of columns."""
    by_format = [(str(name), rows) for name, rows in judged.groupby("format", sort=False)]
    tables = [_overview(judged, by_format)] if len(by_format) > 1 else []
    tables += [_details(name, rows) for name, rows in by_format]
    notes = [*_margin_notes(judged), *NOTES] if len(judged) else []
    notes += [UNPAIRED] if len(judged) and not judged.loc[judged["verdict"] != "not comparable", "paired"].all() else []
    if fidelity is not None and len(fidelity):
        tables.append(_fidelity_table(fidelity))
        notes += [KL_NOTE, *(FLOOR_NOTE.format(name) for name in _floors(fidelity))]
    return KernelTables(_headline(title, by_format), "", tuple(tables), tuple(notes), _reasons(judged))


def reference_tables(published: pd.DataFrame, judged: pd.DataFrame | None = None) -> KernelTables:
    """What was published, a table for each metric, beside the judged rows of a run where one is given."""
    known = published[published["delta"].notna()]
    sources = list(known["source"].unique())
    tables = [_published_table(str(metric), rows, sources) for metric, rows in known.groupby("metric", sort=False)]
    if judged is not None:
        tables += [_details(str(name), rows) for name, rows in judged.groupby("format", sort=False)]
    remarks = published[published["note"] != ""]
    reasons = [f"{row['source']}, {row['model']}, {row['benchmark']}: {row['note']}" for row in _records(remarks)]
    below = int((known["delta"].abs() < known["resolution"]).sum())
    resolved = int(known["resolution"].notna().sum())
    return KernelTables(
        headline=f"{below} of {resolved} published differences are below what their own comparison could resolve.",
        common="",
        tables=tuple(tables),
        notes=(PUBLISHED_NOTE, _sources_note(sources), *(_margin_notes(judged) if judged is not None else ())),
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _headline(title: str, by_format: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """Each format's verdicts, those that need attention first."""
    parts = [f"{name}: {_counted(rows)}" for name, rows in by_format]
    return ". ".join(filter(None, [title, "; ".join(parts) or "No task was scored"])) + "."


def _counted(rows: pd.DataFrame) -> str:
    """ "1 worse (recall acc), 5 equivalent"; scores are named where they are few."""
    texts = []
    for verdict in ORDER:
        those = _records(rows[rows["verdict"] == verdict])
        if those:
            named = verdict in NAMED and len(those) <= FEW and len(rows) > 1
            names = f" ({', '.join(map(row_name, those))})" if named else ""
            texts.append(f"{len(those)} {verdict}{names}")
    return ", ".join(texts)


def _overview(judged: pd.DataFrame, by_format: Sequence[tuple[str, pd.DataFrame]]) -> Table:
    """Scores down, formats across: delta and verdict of each."""
    heads = _records(judged.drop_duplicates(KEYS))
    columns = [
        _column(heads, "task", _words("task"), key=True),
        _column(heads, "metric", metric_text, key=True),
    ]
    for name, rows in by_format:
        lines = {tuple(row[key] for key in KEYS): row for row in _records(rows)}
        found = [lines.get(tuple(head[key] for key in KEYS)) for head in heads]
        deltas = tuple(UNDEFINED if row is None else delta_text(row, row["delta"]) for row in found)
        verdicts = tuple(UNDEFINED if row is None else verdict_text(row) for row in found)
        columns += [Column(name, "verdict", verdicts, numeric=False), Column(name, "Δ", deltas)]
    return Table(f"what every format costs against {judged['baseline'].iloc[0]}", tuple(columns))


def _details(name: str, rows: pd.DataFrame) -> Table:
    """Every figure of one format, a line for each task, filter and metric."""
    baseline = str(rows["baseline"].iloc[0])
    column = functools.partial(_column, _records(rows))
    return _without_dashes(
        f"{name} against {baseline}",
        column("task", _words("task"), key=True),
        column("metric", metric_text, key=True),
        column("verdict", verdict_text, "result", numeric=False),
        column("Δ", lambda row: delta_text(row, row["delta"]), "result"),
        column("95 %", interval_text, "result"),
        column(baseline, lambda row: score_text(row, row["baseline_score"]), "score"),
        column(name, lambda row: score_text(row, row["score"]), "score"),
        column("p", lambda row: p_text(row["p"]), "test"),
        column("p Holm", lambda row: p_text(row["p_holm"]), "test"),
        column("resolution", resolution_text, "test"),
        column("95 % by", _words("method"), "test", numeric=False),
        column("all", _count("documents"), "documents"),
        column("clusters", _clusters, "documents"),
        column("lost", _count("lost"), "documents"),
        column("gained", _count("gained"), "documents"),
        column("other answer", _count("answers_changed"), "documents"),
    )


def _fidelity_table(fidelity: pd.DataFrame) -> Table:
    lines = _records(fidelity.reindex(columns=["format", *FIDELITY, *LOGPROB]))
    column = functools.partial(_column, lines)
    return _without_dashes(
        "fidelity: the same tokens through every format",
        column("format", _words("format"), key=True),
        column("B/token", _count("bytes_per_token")),
        *(column(title, _figure(name), "KL, nats") for name, title in KL.items()),
        column("%", lambda row: percent_text(row["top1_agreement"]), "top-1"),
        column("mean", _figure("delta_logprob"), "Δ log-probability, nats"),
        column("95 %", lambda row: between(compact, *(row[name] for name in LOGPROB[1:])), "Δ log-probability, nats"),
    )


def _published_table(metric: str, rows: pd.DataFrame, sources: Sequence[str]) -> Table:
    """Published rows of one metric, accuracies in percent; a source by its number among ``sources``."""
    column = functools.partial(_column, _records(rows))
    factor, digits = (100, 2) if metric == "accuracy" else (1, 4)

    def figure(name: str, sign: str = "") -> Callable[[Row], str]:
        return lambda row: UNDEFINED if pd.isna(row[name]) else f"{factor * row[name]:{sign}.{digits}f}"

    return _without_dashes(
        "published accuracy, % and points" if metric == "accuracy" else f"published {metric}, nats",
        column("model", _words("model"), key=True),
        column("benchmark", _words("benchmark"), key=True),
        column("format", _words("format"), key=True),
        column("Δ", figure("delta", "+"), "difference"),
        column("resolution", figure("resolution"), "difference"),
        column("p", lambda row: p_text(row["p"]), "difference"),
        column("baseline", lambda row: f"{row['baseline']} {figure('baseline_score')(row)}", "scores"),
        column("format", figure("score"), "scores"),
        column("n", _count("documents")),
        column("source", lambda row: str(1 + sources.index(row["source"]))),
    )


def _sources_note(sources: Sequence[str]) -> str:
    return f"sources: {'; '.join(f'{number} {source}' for number, source in enumerate(sources, 1))}"


def _column(
    lines: Sequence[Row],
    name: str,
    text: Callable[[Row], str],
    group: str = "",
    *,
    numeric: bool = True,
    key: bool = False,
) -> Column:
    return Column(group, name, tuple(map(text, lines)), numeric and not key, key)


def _words(name: str) -> Callable[[Row], str]:
    return lambda row: UNDEFINED if pd.isna(row[name]) else str(row[name])


def _count(name: str) -> Callable[[Row], str]:
    return lambda row: UNDEFINED if pd.isna(row[name]) else str(int(row[name]))


def _figure(name: str) -> Callable[[Row], str]:
    return lambda row: compact(row[name])


def _without_dashes(title: str, *columns: Column) -> Table:
    """A table without the columns that say nothing."""
    return Table(title, tuple(column for column in columns if set(column.cells) != {UNDEFINED}))


def _clusters(row: Row) -> str:
    """Clusters, where documents are not independent."""
    if pd.isna(row["clusters"]) or row["clusters"] == row["documents"]:
        return UNDEFINED
    return str(int(row["clusters"]))


def _margin_notes(judged: pd.DataFrame) -> list[str]:
    """The margins, and the smallest losses that could have shown."""
    known = judged[judged["margin"].notna()]
    shares, others = known[known["bounded"].astype(bool)], known[~known["bounded"].astype(bool)]
    plain = others[others["aggregation"] == "mean"]
    margins = [f"{100 * margin:.3g} pt of accuracy" for margin in sorted(set(shares["margin"]))]
    percents = {f"{100 * row['margin'] / abs(row['baseline_score']):.3g}" for row in _records(plain)}
    margins += [f"{percent} % of other scores" for percent in sorted(percents)]
    notes = [f"margin: {', '.join(margins)}"] if margins else []
    resolved = shares["resolution"].dropna()
    if len(resolved):
        low, high = (f"{100 * value:.2f}" for value in (resolved.min(), resolved.max()))
        spread = f"±{low}" if low == high else f"±{low} to ±{high}"
        notes.append(
            f"resolution: the smallest loss that so many documents show with 80 % power (minimum detectable effect); "
            f"here {spread} pt of accuracy"
        )
    return notes


def _floors(fidelity: pd.DataFrame) -> list[str]:
    """The formats that are the baseline computed again."""
    floors = fidelity.get("is_floor")
    return [] if floors is None else [str(name) for name in fidelity.loc[floors.fillna(False).astype(bool), "format"]]


def _reasons(judged: pd.DataFrame) -> tuple[str, ...]:
    """What must be known of rows, each sentence once, with the rows that it is about where these are few."""
    about: dict[tuple[str, str], list[str]] = {}
    for row in _records(judged):
        for note in row["notes"]:
            about.setdefault((str(row["format"]), str(note)), []).append(row_name(row))
    lines = []
    for (name, note), scores in about.items():
        where = ", ".join(scores) if len(scores) <= FEW else f"{len(scores)} scores"
        lines.append(f"{name}, {where}: {note}")
    return tuple(lines)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
