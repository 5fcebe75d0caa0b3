"""Kernel tables laid out for plain text, Markdown, a terminal (rich) and CSV. Layout only: ``tables`` makes the text.

A table too wide for the given width is split by provider, then by column, the axes repeated each time; where that does
not help its lines are stacked. A number is never cut short.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable

import pandas as pd
import rich.box
import rich.console
import rich.markup
import rich.table

from dsmla_bench.reports.characters import harmless
from dsmla_bench.reports.tables import MARKS, Column, KernelTables, Table
from dsmla_bench.rows import FINDINGS

_GAP = "  "


def to_csv(frame: pd.DataFrame) -> str:
    """``frame`` as CSV in full precision; an undefined cell is empty."""
    return frame.to_csv(index=False, lineterminator="\n")


def to_text(report: KernelTables, width: int | None = None) -> str:
    """The report as aligned plain text, at most ``width`` characters wide where its numbers allow; None: no limit."""
    lines = [*_wrapped([report.headline], width), *_wrapped([report.common], width), ""]
    for table in report.tables:
        lines += [*_wrapped([table.title], width)]
        pieces = _split(table, lambda piece: width is None or _width(piece) <= width)
        blocks = [_grid(piece) for piece in pieces] if pieces else [_stacked(table)]
        lines += [line for block in blocks for line in (*block, "")]
    notes = [*_wrapped(report.notes, width), "", *_wrapped(report.reasons, width)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, *notes])).strip("\n") + "\n"


def to_markdown(report: KernelTables) -> str:
    """The report as GitHub-flavoured Markdown, a third-level heading to each table."""
    parts = [escape_markdown(text) for text in (report.headline, report.common) if text]
    for table in report.tables:
        parts += [f"### {escape_markdown(table.title)}", table_markdown(table)]
    for lines in (report.notes, report.reasons):
        parts += ["\n".join(f"- {escape_markdown(line)}" for line in lines)] if lines else []
    return "\n\n".join(parts) + "\n"


def to_rich(report: KernelTables, width: int | None = None) -> list[rich.table.Table]:
    """The tables for a rich console of ``width`` characters; headline, notes and reasons are left to the caller."""
    measure = rich.console.Console(width=10_000).measure

    def fits(piece: Table) -> bool:
        return width is None or measure(_rich_table(piece)).maximum <= width

    made = []
    for table in report.tables:
        pieces = _split(table, fits)
        made += [_rich_table(piece) for piece in pieces] if pieces else [_rich_stack(table)]
    return made


def _split(table: Table, fits: Callable[[Table], bool]) -> list[Table]:
    """The table whole, by provider or by column, the first that fits; [] when nothing does."""
    axes = [column for column in table.columns if not column.group]
    groups = [list(columns) for group, columns in column_groups(table) if group]
    by_column = [(*axes, column) for group in groups for column in group]
    for layout in ([table.columns], [(*axes, *group) for group in groups], by_column):
        pieces = [dataclasses.replace(table, columns=tuple(columns)) for columns in layout]
        if all(map(fits, pieces)):
            return pieces
    return []


def column_groups(table: Table) -> Iterable[tuple[str, Iterable[Column]]]:
    """Neighbouring columns of one group, with its name."""
    return itertools.groupby(table.columns, key=lambda column: column.group)


def _width(table: Table) -> int:
    return max(map(len, _grid(table)))


def _padded(column: Column) -> list[str]:
    """The cells with room for marks, so that digits stand below digits."""
    marks = [len(cell) - len(cell.rstrip(MARKS)) for cell in column.cells]
    return [cell + " " * (max(marks) - mark) for cell, mark in zip(column.cells, marks, strict=True)]


def _grid(table: Table) -> list[str]:
    """Two heading lines, providers above metrics, and a line per shape."""
    top, names = [], []
    lines: list[list[str]] = [[] for _ in table.columns[0].cells]
    for group, members in column_groups(table):
        columns = [(column, _padded(column)) for column in members]
        widths = [max(map(len, (column.name, *cells))) for column, cells in columns]
        widths[-1] += max(0, len(group) - sum(widths) - len(_GAP) * (len(widths) - 1))
        top.append(group.ljust(sum(widths) + len(_GAP) * (len(widths) - 1)))
        for (column, cells), width in zip(columns, widths, strict=True):
            align = str.rjust if column.numeric else str.ljust
            names.append(align(column.name, width))
            for line, cell in zip(lines, cells, strict=True):
                line.append(align(cell, width))
    return [_GAP.join(cells).rstrip() for cells in (top, names, *lines)]


def _stacked(table: Table) -> list[str]:
    """A block of lines per shape, for a page too narrow for any grid."""
    lines = []
    for number in range(len(table.columns[0].cells)):
        for group, columns in column_groups(table):
            pairs = ", ".join(f"{column.name} {column.cells[number]}" for column in columns)
            lines.append(f"  {group}: {pairs}" if group else pairs)
    return lines


def _wrapped(paragraphs: tuple[str, ...] | list[str], width: int | None) -> list[str]:
    """The paragraphs that are not empty, wrapped, later lines indented."""
    texts = [text for text in paragraphs if text]
    if width is None:
        return texts
    return [line for text in texts for line in textwrap.wrap(text, max(width, 20), subsequent_indent="  ")]


def table_markdown(table: Table) -> str:
    """One table as Markdown, without its title."""
    heads = [escape_markdown(f"{column.group} {column.name}".strip()) for column in table.columns]
    rules = ["---:" if column.numeric else ":---" for column in table.columns]
    lines = zip(*[[escape_markdown(cell) for cell in column.cells] for column in table.columns], strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *lines))


def escape_markdown(text: str) -> str:
    """``text`` so that Markdown shows it as it is; an underscore inside a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))", r"\\\1", re.sub(r"\s+", " ", text))


def _rich_table(table: Table) -> rich.table.Table:
    made = rich.table.Table(title=_shown(table.title), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        cells = _padded(column)
        head = f"{_shown(column.group)}\n{_shown(column.name)}"
        made.add_column(
            head, justify="right" if column.numeric else "left", no_wrap=True, min_width=max(map(len, cells))
        )
    for line in zip(*map(_padded, table.columns), strict=True):
        made.add_row(*[f"[red]{_shown(cell)}[/red]" if cell.strip() in FINDINGS else _shown(cell) for cell in line])
    return made


def _rich_stack(table: Table) -> rich.table.Table:
    made = rich.table.Table(title=_shown(table.title), box=None, show_header=False)
    made.add_column(overflow="fold")
    for line in _stacked(table):
        made.add_row(_shown(line))
    return made


def _shown(text: str) -> str:
    """``text`` as rich shows it as it is: no markup of its own, no character that steers the terminal."""
    return rich.markup.escape(harmless(text))
