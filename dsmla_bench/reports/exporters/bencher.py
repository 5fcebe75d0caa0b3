"""Bencher Metric Format: benchmark → measure → value with lower and upper value.

A measure is called by its column, which carries the unit ("us", "gbps"). Rows without a figure are left out.
"""

from __future__ import annotations

import json

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.exporters.exported import Figure, exported_rows
from dsmla_bench.results import Run, RunError

LONGEST_NAME = 1024
"""Characters that Bencher allows for the name of a benchmark."""


def export(run: Run) -> str:
    """All figures. Raises RunError when there is none, or when a name is too long for Bencher."""
    found = {
        row.name: {figure.column.replace("_", "-"): _metric(figure) for figure in row.figures}
        for row in exported_rows(run)
        if row.figures
    }
    if not found:
        raise RunError(f"{run.path}: has no figure")
    longest = max(found, key=len)
    if len(longest) > LONGEST_NAME:
        raise RunError(f"{run.path}: a name has {len(longest)} characters, Bencher allows {LONGEST_NAME}: {longest}")
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _metric(figure: Figure) -> dict[str, float]:
    bounds = {"lower_value": figure.lower, "upper_value": figure.upper}
    return {"value": figure.value, **{name: bound for name, bound in bounds.items() if bound is not None}}


EXPORTERS = (Exporter("bencher", "Bencher Metric Format: bencher run --adapter json --file", export),)
