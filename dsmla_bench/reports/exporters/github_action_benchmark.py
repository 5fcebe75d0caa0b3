"""github-action-benchmark's custom input: a JSON list of name, unit, value, range and extra.

The action reads one direction per file, so there are two exporters, for its tools ``customSmallerIsBetter`` and
``customBiggerIsBetter``. Rows without a figure are left out; the action has no place for them.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.exporters.exported import Figure, exported_rows
from dsmla_bench.results import Run, RunError


def export(run: Run, better: str) -> str:
    """The figures for which ``better`` ("lower" or "higher") is better. Raises RunError when there is none."""
    entries = [
        _entry(f"{row.name}: {figure.metric.label}", figure)
        for row in exported_rows(run)
        for figure in row.figures
        if figure.metric.better == better
    ]
    if not entries:
        raise RunError(f"{run.path}: has no figure for which {better} is better")
    return json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _entry(name: str, figure: Figure) -> dict[str, Any]:
    entry = {"name": name, "unit": figure.metric.unit or "1", "value": figure.value}
    if figure.lower is not None and figure.upper is not None:
        entry["range"] = f"{figure.lower} … {figure.upper}"
    return entry


EXPORTERS = (
    Exporter(
        "github-action-benchmark",
        "benchmark-action/github-action-benchmark, tool customSmallerIsBetter",
        functools.partial(export, better="lower"),
    ),
    Exporter(
        "github-action-benchmark-bigger",
        "the same for figures of which more is better, tool customBiggerIsBetter",
        functools.partial(export, better="higher"),
    ),
)
