"""Strict JSON: the manifest and every table of the run, an undefined figure null, never NaN."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.run_sections import section_of
from dsmla_bench.results import Run


def export(run: Run) -> str:
    """``{"run_id", "manifest", "tables": {name: [row, …]}}``; a row has all columns of its table."""
    tables = {name: records(frame) for name, frame in section_of(run).data.items()}
    document = {"run_id": run.run_id, "manifest": run.manifest, "tables": tables}
    return json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain data, undefined as None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


EXPORTERS = (Exporter("json", "manifest and all tables, strict JSON", export),)
