"""Columns of text, aligned, and what becomes of them where there is too little room."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines of cells, equally many each, as text with two spaces between columns; those in ``right`` end together."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(_cells(line, widths, right)).rstrip() for line in lines]


def fitted(lines: Sequence[Sequence[str]], right: Collection[int] = (), width: int | None = None) -> list[str]:
    """``lines``, the first of which names the columns, aligned; where ``width`` is too narrow, a paragraph for each.

    A paragraph has the cells behind the names of their columns. None for no limit.
    """
    grid = aligned(lines, right)
    if width is None or max(map(len, grid)) <= width:
        return grid
    names, *rest = lines
    return [_paragraph(names, cells, width) for cells in rest]


def broken(text: str, width: int) -> str:
    """``text`` with lines longer than ``width`` broken between words, continued behind their own indentation."""
    return "\n".join(_broken_line(line, width) for line in text.split("\n"))


def _broken_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _paragraph(names: Sequence[str], cells: Sequence[str], width: int) -> str:
    first, *others = zip(names, cells, strict=True)
    text = f"{first[1]}: " + "; ".join(f"{name} {cell}" for name, cell in others if cell)
    return textwrap.fill(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _cells(line: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    cells = enumerate(zip(line, widths, strict=True))
    return [cell.rjust(width) if column in right else cell.ljust(width) for column, (cell, width) in cells]
