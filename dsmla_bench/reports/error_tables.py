"""The tables of an error run as text, laid out by ``renderings``: what every format costs on every kind of data.

One table compares the error of all sources, and one per source has every figure; attention has one per source, readers
one per kind of data, at the sigma nearest to 1.
A dash is an undefined value. Figures are defined in the notes below the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dsmla_bench.reports.error_frame import named, shown_sources
from dsmla_bench.reports.tables import UNDEFINED, Column, KernelTables, Table

BOTH = {
    "rel-L2": "rel_l2",
    "SNR dB": "snr_db",
    "max abs": "max_abs",
    "max rel": "max_rel",
    "1 - cos": "one_minus_cosine",
    "bias": "mean_bias",
}
PART = {
    "rel-L2": "rel_l2",
    "clipped %": "clipped_share",
    "flushed %": "flushed_share",
    "tile p50": "tile_p50",
    "tile p99": "tile_p99",
    "worst tile": "tile_max",
}
NON_FINITE = {"in": "non_finite_in", "lost": "non_finite_lost", "made": "non_finite_made"}
ATTENTION = {
    "logit rms": "logit_rms",
    "logit max": "logit_max",
    "KL mean": "kl_mean",
    "KL p99": "kl_p99",
    "output rel-L2": "output_rel_l2",
    "worst output": "output_worst",
}
READERS = {
    "values": "values",
    "other bits %": "differing_share",
    "least factor": "least_factor",
    "rel-L2": "rel_l2",
    "SNR dB": "snr_db",
    "gain": "gain",
}
NOTES = (
    "against what the cache was given, rounded to bf16. rel-L2: sqrt(sum of squared errors / sum of squares); max rel: "
    "of values that are not 0; bias: mean error; tile: rel-L2 of 16 neighbouring values",
    "clipped: beyond the largest magnitude that the stored scale can express; flushed: not 0, read as 0; "
    "s: seconds of quantizing, reading back and summing up",
)
ATTENTION_NOTE = (
    "attention: top-k of MLA in its absorbed form over what a reader gets; logits and KL in nats; output rel-L2 over "
    "all queries and heads, and of the worst one"
)
READERS_NOTE = (
    "readers: fp32 multiplies by the stored scale, bf16 by the scale rounded to bf16, ue8m0 by the power of two at or "
    "below it; least factor: the smallest ratio of the scale used to the one stored; gain: 1 without shrinkage"
)


def error_tables(
    errors: pd.DataFrame,
    attention: pd.DataFrame | None = None,
    readers: pd.DataFrame | None = None,
    *,
    default_revisions: Mapping[str, str] | None = None,
) -> KernelTables:
    """The tables of a run from its frames; ``attention`` and ``readers`` where it has them."""
    revisions = default_revisions or {}
    rows = _with_shares(named(errors, revisions))
    ok = rows[rows["status"] == "ok"]
    tables = [_overview(ok)] if ok["data"].nunique() > 1 else []
    tables += [_details(group, str(data)) for data, group in ok.groupby("data", sort=False)]
    notes = list(NOTES)
    if attention is not None:
        tables += _attention_tables(named(attention, revisions))
        notes.append(ATTENTION_NOTE)
    if readers is not None:
        tables += [_readers_table(readers[readers["data"] == data], data) for data in shown_sources(ok)]
        notes.append(READERS_NOTE)
    only = rows["only"].dropna().unique()
    return KernelTables(
        headline=f"Only {'NoPE' if only[0] == 'nope' else 'RoPE'} is quantized, the rest is bf16." if len(only) else "",
        common="",
        tables=tuple(tables),
        notes=tuple(notes) if len(ok) else (),
        reasons=_reasons(rows, attention),
    )


def compact(value: Any) -> str:
    """A number in 3 significant digits, an integer whole, None and <NA> as a dash."""
    if pd.isna(value) or not math.isfinite(value):
        return UNDEFINED
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _with_shares(rows: pd.DataFrame) -> pd.DataFrame:
    finite_in = (rows["values"] + rows["non_finite_made"]).astype("Float64")
    shares = {f"{name}_share": 100 * rows[name] / finite_in.mask(finite_in == 0) for name in ("clipped", "flushed")}
    return rows.assign(**shares, one_minus_cosine=1 - rows["cosine"])


def _overview(ok: pd.DataFrame) -> Table:
    """NoPE's rel-L2 of every variant (a line) on every source (a column)."""
    nope = ok[ok["part"] == "NoPE"].drop_duplicates(["label", "data"])
    lines, sources = nope["label"].unique(), nope["data"].unique()
    found = nope.set_index(["label", "data"])["rel_l2"]
    columns = [Column("", "format", tuple(map(str, lines)), numeric=False, key=True)]
    for source in sources:
        kind, _, sigma = str(source).partition(" ")
        cells = tuple(compact(found.get((line, source))) for line in lines)
        columns.append(Column(kind, sigma or "file", cells))
    return Table("NoPE rel-L2 on all data", tuple(columns))


def _details(rows: pd.DataFrame, data: str) -> Table:
    both = rows[rows["part"] == "both"]
    columns = [*_named(both), Column("", "B/token", tuple(map(str, both["bytes_per_token"])))]
    if both["scale"].notna().any():
        columns.append(Column("", "scale", tuple(map(_scale, both["scale_origin"], both["scale"])), numeric=False))
    columns += [*_columns(both, "", {"s": "seconds"}), *_columns(both, "both", BOTH)]
    for part in ("NoPE", "RoPE"):
        columns += _columns(rows[rows["part"] == part], part, PART)
    if (both[list(NON_FINITE.values())] > 0).any(axis=None):
        columns += _columns(both, "not finite", NON_FINITE)
    return Table(f"{data}, {both['tokens'].iloc[0]} tokens", tuple(columns))


def _named(rows: pd.DataFrame) -> list[Column]:
    """What names a line: the format, and the provider where there are several."""
    columns = [Column("", "format", tuple(rows["label"].map(str)), numeric=False, key=True)]
    if rows["provider"].nunique() > 1:
        columns.append(Column("", "provider", tuple(map(str, rows["provider"])), numeric=False, key=True))
    return columns


def _scale(origin: Any, scale: Any) -> str:
    """A scale outside the cache with where it comes from: "default 1.0"."""
    return UNDEFINED if pd.isna(scale) else f"{origin} {scale:.1f}" if scale == 1 else f"{origin} {compact(scale)}"


def _columns(rows: pd.DataFrame, group: str, shown: Mapping[str, str]) -> list[Column]:
    return [Column(group, name, tuple(map(compact, rows[column]))) for name, column in shown.items()]


def _attention_tables(rows: pd.DataFrame) -> list[Table]:
    tables = []
    for data, group in rows[rows["status"] == "ok"].groupby("data", sort=False):
        by = {str(against): part for against, part in group.groupby("against", sort=False)}
        first = next(iter(by.values()))
        columns = _named(first)
        for against, part in by.items():
            columns += _columns(part, f"against {against}", ATTENTION)
        spread = math.exp(float(first["entropy"].iloc[0]))
        top_k, context, queries, heads = (first[name].iloc[0] for name in ("top_k", "context", "queries", "heads"))
        title = (
            f"attention, {data}: top {top_k} of {context} tokens, {queries} queries of {heads} heads, "
            f"weights spread over {spread:.3g} tokens"
        )
        tables.append(Table(title, tuple(columns)))
    return tables


def _readers_table(rows: pd.DataFrame, data: str) -> Table:
    rows = rows.assign(differing_share=100 * rows["differing"] / rows["values"].mask(rows["values"] == 0))
    names = tuple(f"{fmt}:{revision}" for fmt, revision in zip(rows["format"], rows["revision"], strict=True))
    keys = {"format": names, "reader": tuple(map(str, rows["reader"]))}
    columns = [Column("", name, cells, numeric=False, key=True) for name, cells in keys.items()]
    return Table(f"the same bytes by other readers, {data}", (*columns, *_columns(rows, "NoPE", READERS)))


def _reasons(errors: pd.DataFrame, attention: pd.DataFrame | None) -> tuple[str, ...]:
    """Why there are no figures, each reason said once."""
    lines: dict[str, None] = {}
    for what, rows in (("", errors), ("attention", attention)):
        if rows is None:
            continue
        for row in rows[rows["status"] != "ok"].fillna({"provider": ""}).to_dict("records"):
            who = " ".join(filter(None, [what, row["provider"], f"{row['format']}:{row['revision']}"]))
            lines[f"{row['status']}: {who} on {row['data']}: {row['reason']}"] = None
    return tuple(lines)
