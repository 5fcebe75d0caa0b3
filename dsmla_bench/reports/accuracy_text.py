"""Figures of judged rows as text, in the unit that a reader expects: a row is a record of judged.parquet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from dsmla_bench.reports.tables import UNDEFINED

Row = Mapping[str, Any]


def delta_text(row: Row, value: Any) -> str:
    """A delta or a bound of one: points of an accuracy, percent of a perplexity, else the metric's unit, signed."""
    if pd.isna(value):
        return UNDEFINED
    if row["bounded"]:
        return f"{100 * value:+.2f}"
    if row["aggregation"] == "exp_mean":
        return f"{100 * math.expm1(value):+.2f} %" if value < 10 else f"×{math.exp(min(value, 700)):.3g}"
    return f"{value:+.3g}"


def score_text(row: Row, value: Any) -> str:
    """A score: percent of an accuracy, else the metric's unit."""
    if pd.isna(value):
        return UNDEFINED
    return f"{100 * value:.2f}" if row["bounded"] else f"{value:.5g}"


def resolution_text(row: Row) -> str:
    """The smallest loss that shows: "±2.43"."""
    text = delta_text(row, row["resolution"])
    return "±" + text.lstrip("+×") if text != UNDEFINED else text


def interval_text(row: Row) -> str:
    """The 95 % interval: "-9.82 … -1.47"; a bound that is not settled is a dash."""
    return between(lambda value: delta_text(row, value), row["delta_lo"], row["delta_hi"])


def between(text: Callable[[Any], str], low: Any, high: Any) -> str:
    """Two bounds as one cell; a dash without either."""
    if pd.isna(low) and pd.isna(high):
        return UNDEFINED
    return f"{text(low)} … {text(high)}"


def verdict_text(row: Row) -> str:
    """The verdict, with how many documents would settle an inconclusive one, and marked where scores are unpaired."""
    verdict = str(row["verdict"])
    if not pd.isna(row["needed"]):
        return f"{verdict} ({int(row['needed'])})"
    return verdict if row["paired"] or verdict == "not comparable" else f"unpaired, {verdict}"


def metric_text(row: Row) -> str:
    """The metric, with the filter where there is one, as lm-eval writes them: "exact_match,strict-match"."""
    return str(row["metric"]) if row["filter"] in ("none", "") else f"{row['metric']},{row['filter']}"


def row_name(row: Row) -> str:
    """Which score a row is: task, metric and filter."""
    return f"{row['task']} {metric_text(row)}"


def p_text(value: Any) -> str:
    """A p-value with three decimals."""
    if pd.isna(value):
        return UNDEFINED
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def percent_text(value: Any) -> str:
    """A share of 1 in percent."""
    return UNDEFINED if pd.isna(value) else f"{100 * value:.2f}"
