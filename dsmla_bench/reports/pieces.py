"""A table too wide for its place, cut into pieces: neighbouring columns, behind the key columns each time.

A piece has the lines of which it says something.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

from dsmla_bench.reports.tables import UNDEFINED, Column, Table


def pieces(table: Table, fits: Callable[[Table], bool]) -> list[Table]:
    """The table in as few pieces as ``fits`` allows when a group is torn only where it would not fit by itself.

    A column that does not fit even alone is a piece nevertheless.
    """
    keys = dataclasses.replace(table, columns=tuple(column for column in table.columns if column.key))
    made: list[Table] = []
    for unit in _units(table, lambda columns: fits(_longer(keys, columns))):
        if made and fits(_longer(made[-1], unit)):
            made[-1] = _longer(made[-1], unit)
        else:
            made.append(_longer(keys, unit))
    return [table] if len(made) < 2 else [_with_telling_lines(piece) for piece in made]


def column_groups(columns: Iterable[Column]) -> list[tuple[str, list[Column]]]:
    """Neighbouring columns of one group, with its name; columns without a group are one by one."""
    numbered = itertools.groupby(enumerate(columns), key=lambda place: (place[1].group, place[1].group or place[0]))
    return [(group, [column for _, column in members]) for (group, _), members in numbered]


def _units(table: Table, fit: Callable[[list[Column]], bool]) -> Iterator[list[Column]]:
    """The columns that are no keys: those of a group together where they fit."""
    for _, columns in column_groups(column for column in table.columns if not column.key):
        yield from [columns] if fit(columns) else ([column] for column in columns)


def _with_telling_lines(piece: Table) -> Table:
    """The piece without lines of dashes, unless all are."""
    figures = zip(*(column.cells for column in piece.columns if not column.key), strict=True)
    tell = [set(cells) - {"", UNDEFINED} != set() for cells in figures]
    if not any(tell):
        return piece
    columns = [
        dataclasses.replace(column, cells=tuple(itertools.compress(column.cells, tell))) for column in piece.columns
    ]
    return dataclasses.replace(piece, columns=tuple(columns))


def _longer(table: Table, columns: Iterable[Column]) -> Table:
    return dataclasses.replace(table, columns=(*table.columns, *columns))
