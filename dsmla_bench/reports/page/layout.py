"""How a table fits a page: whole, or cut into pieces.

A page cannot ask how wide it is without JavaScript, so it carries a layout for a wide window and one for a narrow one
where they differ, and its style shows one of them.
"""

from __future__ import annotations

import functools

from dsmla_bench.reports.pieces import pieces
from dsmla_bench.reports.tables import Column, Table

WIDE, NARROW = 160, 104
"""Letters that fit side by side into a window of 1400 and of 700 pixels, in the style's letters."""
MOST_TEXT, MOST_NUMBER = 24, 16
"""Columns of text and of numbers are seldom wider, as their cells break into lines between words."""
GAP = 2


def layouts(table: Table) -> list[tuple[str, list[Table]]]:
    """Class of the style → the pieces to show: one layout for all windows, or one for wide and one for narrow."""
    wide, narrow = (pieces(table, functools.partial(fits, letters=letters)) for letters in (WIDE, NARROW))
    return [("", wide)] if len(wide) == len(narrow) else [("wide", wide), ("narrow", narrow)]


def fits(table: Table, letters: int) -> bool:
    """Whether a window of so many letters shows the table whole."""
    return sum(_letters(column) + GAP for column in table.columns) <= letters


def _letters(column: Column) -> int:
    texts = (column.name, *column.cells)
    longest_word = max(len(word) for text in texts for word in text.split() or [""])
    most = MOST_NUMBER if column.numeric else MOST_TEXT
    return max(longest_word, min(most, max(map(len, texts))))
