"""How a table fits a page: whole, or in pieces of neighbouring columns that each repeat the ones that name a line.

A page cannot ask how wide it is without JavaScript, so it carries a layout for a wide window and one for a narrow one
where they differ, and its style shows one of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from dsmla_bench.reports.tables import Column, Table

WIDE, NARROW = 160, 104
"""Letters that fit side by side into a window of 1400 and of 700 pixels, in the style's letters."""
MOST_TEXT, MOST_NUMBER = 24, 16
"""Columns of text and of numbers are seldom wider, as their cells break into lines between words."""
GAP = 2


def layouts(table: Table) -> list[tuple[str, list[Table]]]:
    """Class of the style → the pieces to show: one layout for all windows, or one for wide and one for narrow."""
    wide, narrow = pieces(table, WIDE), pieces(table, NARROW)
    return [("", wide)] if len(wide) == len(narrow) else [("wide", wide), ("narrow", narrow)]


def pieces(table: Table, width: int) -> list[Table]:
    """The table in as few pieces as ``width`` letters allow; columns of one group stay together."""
    heads, units = _parts(table.columns)
    made: list[list[Column]] = []
    for unit in units:
        if made and _width([*heads, *made[-1], *unit]) <= width:
            made[-1] += unit
        else:
            made.append(list(unit))
    return [dataclasses.replace(table, columns=(*heads, *columns)) for columns in made or [[]]]


def _parts(columns: Sequence[Column]) -> tuple[list[Column], list[list[Column]]]:
    """The leading columns that name a line, and the others as units that must not be torn apart."""
    grouped = any(column.group for column in columns)
    heads = list(itertools.takewhile(lambda column: not (column.group if grouped else column.numeric), columns))
    rest = columns[len(heads) :]
    units = itertools.groupby(enumerate(rest), key=lambda place: place[1].group or str(place[0]))
    return heads, [[column for _, column in unit] for _, unit in units]


def _width(columns: Sequence[Column]) -> int:
    return sum(_letters(column) + GAP for column in columns)


def _letters(column: Column) -> int:
    texts = (column.name, *column.cells)
    longest_word = max(len(word) for text in texts for word in text.split() or [""])
    most = MOST_NUMBER if column.numeric else MOST_TEXT
    return max(longest_word, min(most, max(map(len, texts))))
