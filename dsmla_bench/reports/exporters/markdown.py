"""GitHub-flavoured Markdown: the summary of formats and the tables of the run."""

from __future__ import annotations

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.renderings import table_markdown, to_markdown
from dsmla_bench.reports.run_sections import section_of
from dsmla_bench.reports.summary_table import measures_of, summary_notes, summary_table
from dsmla_bench.results import Run


def export(run: Run) -> str:
    """The tables, rounded for reading; rows that are not ok show their status, and why."""
    measures = measures_of([run])
    summary = summary_table(measures)
    section = section_of(run)
    parts = [table_markdown(summary)] if summary else []
    parts += ["\n".join(f"- {note}" for note in summary_notes(measures))]
    parts += [to_markdown(tables).rstrip() for tables in section.tables.values()]
    return "\n\n".join(filter(None, parts)) + "\n"


EXPORTERS = (Exporter("markdown", "tables for a comment, an issue or a job's summary", export),)
