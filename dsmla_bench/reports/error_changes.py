"""Two error runs, figure by figure. Errors of seeded data repeat exactly, so any difference is one. Pure judgement.

Rows are matched by what they measure; an absent axis (a format without an external scale, say) is an axis like any
other. Every figure that ``metrics.METRICS`` knows is compared, and nothing else: seconds are no figure of an error run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pandas as pd

from dsmla_bench.reports.judged import Judged, Judgement
from dsmla_bench.reports.metrics import METRICS, compare_exactly
from dsmla_bench.results import Run

_VARIANT = ("format", "revision", "data", "provider", "scale_origin", "latent_scale", "only")
KEYS = {
    "errors": (*_VARIANT, "part"),
    "attention": (*_VARIANT, "against", "context", "top_k", "queries", "heads"),
    "readers": ("format", "revision", "data", "reader"),
}
"""Table of an error run → the columns that say what a row measures."""

Row = dict[str, Any]
Key = tuple[Any, ...]


def judge_errors(before: Run, now: Run, ignored: Collection[str] = ()) -> Judgement:
    """Every figure that both runs have; ``ignored`` columns need not agree."""
    judged: list[Judged] = []
    missing: list[str] = []
    added: list[str] = []
    for table, columns in KEYS.items():
        keys = [name for name in columns if name not in ignored]
        old, new = _rows(before, table, keys), _rows(now, table, keys)
        missing += [_words(table, key) for key in old if key not in new]
        added += [_words(table, key) for key in new if key not in old]
        judged += [found for key in old if key in new for found in _judge(_words(table, key), old[key], new[key])]
    return Judgement(tuple(judged), tuple(missing), tuple(added))


def _rows(run: Run, table: str, keys: list[str]) -> dict[Key, Row]:
    """The rows of a table by key, undefined as None; {} where the run has no such table."""
    if not run.has_table(table):
        return {}
    frame = run.table(table)
    plain = frame.astype(object).where(frame.notna(), None)
    records = [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]
    return {tuple(row[name] for name in keys): row for row in records}


def _judge(subject: str, then: Row, now: Row) -> Iterable[Judged]:
    before, after = then.get("status", "ok"), now.get("status", "ok")
    if before != after:
        verdict = "worse" if before == "ok" else "better" if after == "ok" else "changed"
        yield Judged(subject, "status", verdict, f"{before} → {after}: {now.get('reason') or 'no reason given'}")
        return
    for name in METRICS.keys() & then.keys() & now.keys():
        if then[name] is not None and now[name] is not None:
            yield _compared(subject, name, float(then[name]), float(now[name]))


def _compared(subject: str, name: str, before: float, now: float) -> Judged:
    verdict = compare_exactly(METRICS[name], before, now)
    reason = "" if verdict == "same" else METRICS[name].change(before, now)
    return Judged(subject, name, verdict, reason, before, now)


def _words(table: str, key: Key) -> str:
    """A row in words: "errors nvfp4_ds_mla rn normal sigma=1 reference NoPE"."""
    return " ".join([table, *(str(value) for value in key if not pd.isna(value))])
