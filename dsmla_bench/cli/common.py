"""What several commands share: exit codes, lists on the command line, plain or rich output."""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from dsmla_bench.reports.tables import KernelTables
    from dsmla_bench.results import Run


class ExitCode(enum.IntEnum):
    """What CI may rely on."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    NO_DEVICE = 3
    INTERRUPTED = 130
    READER_GONE = 141


def split(text: str | None) -> list[str]:
    """``a,b,c`` → its parts, each once; nothing for None."""
    return list(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def choose(text: str | None, available: list[str], what: str) -> tuple[str, ...]:
    """The named members of ``available``, all of them for None. Raises ValueError listing what exists."""
    chosen = split(text)
    if text is not None and not chosen:
        raise ValueError(f"no {what} named in {text!r}; available: {', '.join(available)}")
    for name in chosen:
        if name not in available:
            raise ValueError(f"no {what} {name!r}; available: {', '.join(available)}")
    return tuple(chosen or available)


def integers(text: str, what: str) -> tuple[int, ...]:
    """``1,128,8192`` → its numbers, one at least. Raises ValueError for anything else."""
    parts = split(text)
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{what} must be whole numbers with commas between, found {text!r}")
    return tuple(dict.fromkeys(int(part) for part in parts))


def optional_integers(text: str | None, what: str) -> tuple[int, ...] | None:
    """As ``integers``; None for None."""
    return None if text is None else integers(text, what)


def print_json(value: Any) -> None:
    """One JSON document on standard output, in UTF-8 whatever the locale; paths keep the bytes that they have."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogateescape"))


def print_text(text: str) -> None:
    """Text on standard output; characters that its encoding lacks are written as ASCII stand-ins."""
    from dsmla_bench.reports.renderings import printable

    typer.echo(printable(text, sys.stdout.encoding))


def print_tables(tables: KernelTables) -> None:
    """Tables coloured and fitted to the terminal, or as plain text where standard output is none."""
    from dsmla_bench.reports.renderings import to_rich, to_text

    if not sys.stdout.isatty():
        print_text(to_text(tables))
        return
    console = Console()
    for line in filter(None, (tables.headline, tables.common)):
        console.print(line, markup=False)
    for table in to_rich(tables, console.width):
        console.print(table)
    for line in (*tables.notes, *tables.reasons):
        console.print(line, markup=False)


def print_run(run: Run, *, as_json: bool) -> None:
    """A run as tables, or as JSON: its path, manifest and rows."""
    from dsmla_bench.reports.kernel_report import run_tables

    if as_json:
        print_json({"run": str(run.path), "manifest": run.manifest, "rows": run.records()})
    else:
        print_tables(run_tables(run, run.rows()))
