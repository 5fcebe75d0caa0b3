"""A report as one HTML page: readable without a network, without JavaScript, on paper and at any width.

``report.html`` beside this file is its template and ``report.css`` its style, which the page carries in itself. Every
text is escaped by Jinja. Pictures are the SVG files beside the page.
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from dsmla_bench.reports.page.layout import layouts
from dsmla_bench.reports.pieces import column_groups
from dsmla_bench.reports.sections import Pictures, Section
from dsmla_bench.reports.tables import MARKS, Table
from dsmla_bench.rows import FINDINGS


@dataclass(frozen=True)
class Document:
    """A whole report: the summary, what its marks mean, its pictures, and a section per run and comparison."""

    summary: Table | None
    notes: tuple[str, ...]
    pictures: Pictures
    sections: tuple[Section, ...]

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Title and outcome of every section that has one."""
        return [(section.title, section.outcome) for section in self.sections if section.outcome]


def to_html(document: Document) -> str:
    """The page."""
    environment = Environment(
        loader=PackageLoader("dsmla_bench.reports.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"layouts": layouts, "groups": heading_groups, "lines": lines_of}
    environment.filters |= {"is_heading": is_heading, "is_finding": is_finding}
    return environment.get_template("report.html").render(document=document)


def heading_groups(table: Table) -> list[tuple[str, int]]:
    """The headings above neighbouring columns with the columns that each spans; [] where none has a name."""
    groups = [(group, len(columns)) for group, columns in column_groups(table.columns)]
    return groups if any(group for group, _ in groups) else []


def lines_of(table: Table) -> list[list[tuple[str, bool]]]:
    """The cells line by line, each with whether it is a number."""
    cells = [[(cell, column.numeric) for cell in column.cells] for column in table.columns]
    return [list(line) for line in zip(*cells, strict=True)]


def is_heading(line: list[tuple[str, bool]]) -> bool:
    """Whether a line names those below it: its first cell alone says something."""
    return len(line) > 1 and not any(cell for cell, _ in line[1:])


def is_finding(cell: str) -> bool:
    """Whether a cell says that a row is wrong or was not measured."""
    return cell.rstrip(MARKS) in FINDINGS
