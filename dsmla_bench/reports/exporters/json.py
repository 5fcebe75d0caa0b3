"""Strict JSON: the manifest and every table of the run, an undefined figure null, never NaN."""

from __future__ import annotations

import json

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.plain_data import finite, records
from dsmla_bench.reports.run_sections import section_of
from dsmla_bench.results import Run


def export(run: Run) -> str:
    """``{"run_id", "manifest", "tables": {name: [row, …]}}``; a row has all columns of its table."""
    tables = {name: records(frame) for name, frame in section_of(run).data.items()}
    document = {"run_id": run.run_id, "manifest": run.manifest, "tables": tables}
    return json.dumps(finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


EXPORTERS = (Exporter("json", "manifest and all tables, strict JSON", export),)
