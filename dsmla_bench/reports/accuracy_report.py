"""An accuracy run as tables, made from its manifest and Parquet files alone."""

from __future__ import annotations

import dataclasses

import pandas as pd

from dsmla_bench.reports.accuracy_tables import accuracy_tables
from dsmla_bench.reports.tables import KernelTables
from dsmla_bench.results import Run

EMBEDDED = "embedded"
"""What a plan calls the model that is part of this project."""
EMBEDDED_NOTE = "The embedded model ranks formats and checks the pipeline; it forecasts nothing for a real DeepSeek."


def is_accuracy_run(run: Run) -> bool:
    """Whether the run was made by ``dsmla-bench accuracy``."""
    return run.manifest.get("kind") == "accuracy"


def tables_of(run: Run) -> KernelTables:
    """The tables of an accuracy run, with why variants were skipped. Raises RunError when it has no judged.parquet."""
    fidelity = run.table("fidelity") if run.has_table("fidelity") else None
    whole = None if fidelity is None else fidelity[fidelity["bucket"] == "all"]
    tables = accuracy_tables(judged_of(run), whole, title=_title(run))
    skipped = run.table("variants").query("status == 'skipped'")
    reasons = [f"{row['format']} skipped: {row['reason']}" for row in skipped.to_dict("records")]
    common = EMBEDDED_NOTE if (run.manifest.get("config") or {}).get("model") == EMBEDDED else ""
    return dataclasses.replace(tables, common=common, reasons=(*tables.reasons, *reasons))


def judged_of(run: Run) -> pd.DataFrame:
    """The judged rows; ``notes`` are lists of sentences. Raises RunError when the run has none."""
    judged = run.table("judged")
    return judged.assign(notes=judged["notes"].map(list).astype(object))


def _title(run: Run) -> str:
    config = run.manifest.get("config") or {}
    model, backend = config.get("model"), config.get("backend")
    return f"Accuracy of {model} ({backend})" if model and backend else "Accuracy"
