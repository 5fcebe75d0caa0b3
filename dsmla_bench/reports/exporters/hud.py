"""Records for PyTorch's benchmark HUD, version 3: a JSON list with one record per figure.

What only the workflow knows (job, runner, branch) is for its uploader to add. Rows without a figure are left out: the
HUD has no value for them, and a 0 would be drawn as one.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from dsmla_bench.reports.comparability import kind_of
from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.exporters.exported import ExportedRow, Figure, exported_rows
from dsmla_bench.results import Run, RunError

SCHEMA_VERSION = "v3"


def export(run: Run) -> str:
    """All figures. Raises RunError when there is none."""
    common = _common(run)
    records = [_record(row, figure, common) for row in exported_rows(run) for figure in row.figures]
    if not records:
        raise RunError(f"{run.path}: has no figure")
    return json.dumps(records, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _common(run: Run) -> dict[str, Any]:
    """What all records of a run share; what the manifest does not know is left out."""
    manifest = run.manifest
    device, git, packages = (manifest.get(name) or {} for name in ("device", "git", "packages"))
    started = manifest.get("started_at")
    known = {
        "timestamp": int(datetime.fromisoformat(started).timestamp()) if started else None,
        "schema_version": SCHEMA_VERSION,
        "name": f"dsmla-bench {kind_of(run)}",
        "head_sha": git.get("commit"),
        "runners": [{"name": device["name"], "type": str(device.get("arch"))}] if device.get("name") else None,
        "dependencies": {name: {"version": version} for name, version in packages.items() if version} or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _record(row: ExportedRow, figure: Figure, common: dict[str, Any]) -> dict[str, Any]:
    axes = {name: str(value) for name, value in row.axes.items()}
    interval = {name: bound for name, bound in (("lower", figure.lower), ("upper", figure.upper)) if bound is not None}
    about = {"unit": figure.metric.unit, "better": figure.metric.better, **interval}
    return {
        **common,
        "benchmark": {"name": row.name, "mode": axes.get("operation", "format"), "dtype": axes["format"],
                      "extra_info": axes},
        "model": {"name": axes["format"], "type": "kv-cache format", "backend": axes.get("provider", "unknown")},
        "metric": {"name": figure.column, "benchmark_values": [figure.value], "extra_info": about},
    }  # fmt: skip


EXPORTERS = (Exporter("hud", "PyTorch's benchmark HUD, records of version 3", export),)
