"""Text laid out for a terminal: columns, names with texts beside them, and long lines broken between words."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence


def fitted(
    lines: Sequence[Sequence[str]], right: Collection[int] = (), width: int | None = None, keys: int = 1
) -> list[str]:
    """``lines`` of cells, the first of which names the columns, as a table at most ``width`` characters wide.

    The columns in ``right`` end together; the first ``keys`` say which line it is. None for no limit.
    """
    from dsmla_bench.reports.renderings import table_text
    from dsmla_bench.reports.tables import Column, Table

    columns = [
        Column("", name, tuple(cells), numeric=number in right, key=number < keys)
        for number, (name, *cells) in enumerate(zip(*lines, strict=True))
    ]
    return table_text(Table("", tuple(columns)), width).split("\n")


def described(entries: Iterable[tuple[str, str]], indent: str, width: int | None = None) -> list[str]:
    """A line for each name with a text beside it; a text longer than ``width`` goes on below itself."""
    entries = list(entries)
    room = max((len(name) for name, _ in entries), default=0)
    lines = []
    for name, text in entries:
        head = f"{indent}{name:<{room}}  "
        lines += _filled(head, " " * len(head), text, width)
    return lines


def broken(text: str, width: int) -> str:
    """``text`` with lines longer than ``width`` broken between words, continued behind their own indentation."""
    return "\n".join(_broken_line(line, width) for line in text.split("\n"))


def _broken_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    own = line[: len(line) - len(line.lstrip())]
    return "\n".join(_filled(own, f"{own}  ", line.lstrip(), width))


def _filled(first: str, others: str, text: str, width: int | None) -> list[str]:
    """``text`` broken between words, with these beginnings of the first and the other lines; None for no limit."""
    if width is None:
        return [first + text]
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
