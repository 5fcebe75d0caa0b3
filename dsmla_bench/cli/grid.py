"""Columns of text, aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Lines of cells, equally many each, as text with two spaces between columns; those in ``right`` end together."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(_cells(line, widths, right)).rstrip() for line in lines]


def _cells(line: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    cells = enumerate(zip(line, widths, strict=True))
    return [cell.rjust(width) if column in right else cell.ljust(width) for column, (cell, width) in cells]
