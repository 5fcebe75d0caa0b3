"""JUnit XML: a test case per row. Wrong bytes fail, what could not be measured is an error, what was not is skipped."""

from __future__ import annotations

from dsmla_bench.reports.comparability import kind_of
from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.exporters.exported import ExportedRow, exported_rows
from dsmla_bench.reports.junit import Outcome, TestCase, junit_text
from dsmla_bench.results import Run
from dsmla_bench.rows import FINDINGS


def export(run: Run) -> str:
    """All rows. The time of a case is that of one launch, in seconds."""
    kind = kind_of(run)
    cases = [
        TestCase(f"{kind}.{row.axes['format']}", row.name, _outcome(row), row.status, row.reason, _seconds(row))
        for row in exported_rows(run)
    ]
    return junit_text(f"dsmla-bench {kind}", cases)


def _outcome(row: ExportedRow) -> Outcome:
    if row.figures or row.status in ("ok", "compiled"):
        return "passed"
    if row.status == "incorrect":
        return "failure"
    return "error" if row.status in FINDINGS else "skipped"


def _seconds(row: ExportedRow) -> float | None:
    return next((figure.value / 1e6 for figure in row.figures if figure.column == "us"), None)


EXPORTERS = (Exporter("junit", "JUnit XML, for the test view of a CI system", export),)
