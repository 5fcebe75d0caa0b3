"""CSV: the run's main table in full precision, an undefined cell empty; every row with its status and reason."""

from __future__ import annotations

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.renderings import to_csv
from dsmla_bench.reports.run_sections import section_of
from dsmla_bench.results import Run


def export(run: Run) -> str:
    """The first table of the run's section: rows of a sweep, errors, judged scores."""
    return to_csv(next(iter(section_of(run).data.values())))


EXPORTERS = (Exporter("csv", "the run's main table for a spreadsheet", export),)
