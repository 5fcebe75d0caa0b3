"""Tables laid out for plain text, a terminal, Markdown and CSV. Layout only: ``tables`` makes the text.

A table too wide for the given width is cut into pieces (``pieces``); where even a single column beside the key columns
is too wide, each of its lines becomes a paragraph. A number is never cut short.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Literal

import pandas as pd
from rich.text import Text

from dsmla_bench.reports.characters import harmless
from dsmla_bench.reports.pieces import column_groups, pieces
from dsmla_bench.reports.tables import MARKS, UNDEFINED, Column, KernelTables, Table
from dsmla_bench.rows import FINDINGS

_GAP = "  "
_FINDING = rf"(?<!\S)(?:{'|'.join(sorted(FINDINGS))})(?!\S)"
_Kind = Literal["title", "cells", "prose"]


def to_csv(frame: pd.DataFrame) -> str:
    """``frame`` as CSV in full precision; an undefined cell is empty."""
    return frame.to_csv(index=False, lineterminator="\n")


def to_text(report: KernelTables, width: int | None = None) -> str:
    """The report as aligned plain text, at most ``width`` characters wide where its numbers allow; None: no limit."""
    return "\n".join(text for _, text in _lines(report, width)) + "\n"


def to_terminal(report: KernelTables, width: int | None) -> list[Text]:
    """The same lines for a terminal of this width: headings in bold, statuses that are findings in red."""
    return [_styled(kind, harmless(text)) for kind, text in _lines(report, width)]


def table_text(table: Table, width: int | None = None) -> str:
    """One table as aligned plain text, likewise."""
    return "\n\n".join("\n".join(line for _, line in block) for block in _table_blocks(table, width))


def to_markdown(report: KernelTables) -> str:
    """The report as GitHub-flavoured Markdown, a third-level heading to each table."""
    parts = [escape_markdown(text) for text in (report.headline, report.common) if text]
    for table in report.tables:
        parts += [f"### {escape_markdown(table.title)}", table_markdown(table)]
    for lines in (report.notes, report.reasons):
        parts += ["\n".join(f"- {escape_markdown(line)}" for line in lines)] if lines else []
    return "\n\n".join(parts) + "\n"


def _lines(report: KernelTables, width: int | None) -> Iterator[tuple[_Kind, str]]:
    """Every line with what it is; blocks with an empty line between them."""
    blocks = [
        [*_prose([report.headline], width, "title"), *_prose([report.common], width)],
        *(block for table in report.tables for block in _table_blocks(table, width)),
        _prose(report.notes, width),
        _prose(report.reasons, width),
    ]
    for number, block in enumerate(filter(None, blocks)):
        if number:
            yield "prose", ""
        yield from block


def _table_blocks(table: Table, width: int | None) -> list[list[tuple[_Kind, str]]]:
    """The table in as many grids as it takes, below its title; stacked where the width is too small for any grid."""

    def fits(piece: Table) -> bool:
        return width is None or max(map(len, itertools.chain(*_grid(piece)))) <= width

    title, made = _prose([table.title], width, "title"), pieces(table, fits)
    if not all(map(fits, made)):
        return [[*title, *_prose(_stacked(table), width, "cells")]]
    blocks = [_prose(heads, None, "title") + _prose(lines, None, "cells") for heads, lines in map(_grid, made)]
    return [[*title, *blocks[0]], *blocks[1:]]


def _prose(paragraphs: Iterable[str], width: int | None, kind: _Kind = "prose") -> list[tuple[_Kind, str]]:
    """The paragraphs that are not empty, broken into lines, later ones indented."""
    texts = [text for text in paragraphs if text]
    if width is None:
        return [(kind, text) for text in texts]
    wrapper = textwrap.TextWrapper(
        max(width, 20), subsequent_indent=_GAP, break_on_hyphens=False, break_long_words=False
    )
    return [(kind, line) for text in texts for line in wrapper.wrap(text)]


def _styled(kind: _Kind, line: str) -> Text:
    text = Text(line, style="bold" if kind == "title" else "")
    if kind == "cells":
        text.highlight_regex(_FINDING, "red")
    return text


def _padded(column: Column) -> list[str]:
    """The cells with room for marks, so that digits stand below digits."""
    marks = [len(cell) - len(cell.rstrip(MARKS)) for cell in column.cells]
    return [cell + " " * (max(marks) - mark) for cell, mark in zip(column.cells, marks, strict=True)]


def _grid(table: Table) -> tuple[list[str], list[str]]:
    """The headings, groups above names where there are groups, and the lines of cells."""
    top, names = [], []
    lines: list[list[str]] = [[] for _ in table.columns[0].cells]
    for group, members in column_groups(table.columns):
        columns = [(column, _padded(column)) for column in members]
        widths = [max(map(len, (column.name, *cells))) for column, cells in columns]
        widths[-1] += max(0, len(group) - sum(widths) - len(_GAP) * (len(widths) - 1))
        top.append(group.ljust(sum(widths) + len(_GAP) * (len(widths) - 1)))
        for (column, cells), width in zip(columns, widths, strict=True):
            align = str.rjust if column.numeric else str.ljust
            names.append(align(column.name, width))
            for line, cell in zip(lines, cells, strict=True):
                line.append(align(cell, width))
    heads, cells = ([_GAP.join(line).rstrip() for line in part] for part in ((top, names), lines))
    return list(filter(None, heads)), cells


def _stacked(table: Table) -> list[str]:
    """A paragraph per line of the table: what names it, and in a line below its figures behind their names."""
    keys = [column for column in table.columns if column.key]
    groups = column_groups(column for column in table.columns if not column.key)
    paragraphs = []
    for number in range(len(table.columns[0].cells)):
        figures = [_figures(group, columns, number) for group, columns in groups]
        paragraphs += [_GAP.join(_named(key, number) for key in keys), _GAP + ", ".join(filter(None, figures))]
    return paragraphs


def _named(column: Column, number: int) -> str:
    """A cell as it reads alone: a number behind the name of its column."""
    return f"{column.name} {column.cells[number]}" if column.numeric else column.cells[number]


def _figures(group: str, columns: Iterable[Column], number: int) -> str:
    """ "triton µs 1.31, GB/s 1.38": what is known of one group of columns; "" for nothing."""
    known = [column for column in columns if column.cells[number] not in ("", UNDEFINED)]
    texts = ", ".join(f"{column.name} {column.cells[number]}" for column in known)
    return f"{group} {texts}".strip() if known else ""


def table_markdown(table: Table) -> str:
    """One table as Markdown, without its title."""
    heads = [escape_markdown(f"{column.group} {column.name}".strip()) for column in table.columns]
    rules = ["---:" if column.numeric else ":---" for column in table.columns]
    lines = zip(*[[escape_markdown(cell) for cell in column.cells] for column in table.columns], strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *lines))


def escape_markdown(text: str) -> str:
    """``text`` so that Markdown shows it as it is; an underscore inside a word needs no escape."""
    return re.sub(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))", r"\\\1", re.sub(r"\s+", " ", text))
