"""What several commands share: exit codes, lists on the command line, plain or rich output."""

from __future__ import annotations

import enum
import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from dsmla_bench.cli.grid import broken
from dsmla_bench.cli.settings import current, resolved
from dsmla_bench.reports.characters import printable

if TYPE_CHECKING:
    from dsmla_bench.reports.tables import KernelTables
    from dsmla_bench.results import Run


MOST_REPEATS = 10
"""Commands that repeat a failed row, printed below a run's tables."""


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


def say(remark: str) -> None:
    """A remark on standard error, in ASCII where that knows no more; nothing with ``--quiet``."""
    if not current().quiet:
        complain(remark)


def complain(sentence: str) -> None:
    """A sentence on standard error on what went wrong."""
    typer.echo(f"dsmla-bench: {printable(sentence, sys.stderr.encoding)}", err=True)


def recorded(run: Run) -> Run:
    """``run`` with this invocation's options in its manifest: every value, where it came from, and the options file."""
    settings = current()
    if settings.context is not None:
        options = {found.key: {"value": found.value, "source": found.source} for found in resolved(settings.context)}
        file = None if settings.file is None else str(settings.file)
        run.manifest |= without_credentials({"options": options, "options_file": file, "argv": run.manifest["argv"]})
        run.write_manifest()
    return run


def without_credentials(value: Any) -> Any:
    """Plain data with user name and password cut out of every URL."""
    if isinstance(value, dict):
        return {name: without_credentials(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_credentials(item) for item in value]
    return re.sub(r"(?<=://)[^/@\s]*@", "", value) if isinstance(value, str) else value


def print_json(value: Any) -> None:
    """One JSON document on standard output, in UTF-8 whatever the locale; paths keep the bytes that they have."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8", "surrogateescape"))


def terminal_width() -> int | None:
    """Characters in a line of the terminal that standard output is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_text(text: str, *, copied: bool = False) -> None:
    """Text on standard output; characters that its encoding lacks are written as ASCII stand-ins.

    A terminal gets lines broken between words, except ``copied`` ones, which somebody is going to copy.
    """
    width = None if copied else terminal_width()
    typer.echo(printable(text if width is None else broken(text, width), sys.stdout.encoding))


def write_text(file: Path, text: str) -> None:
    """Write a file that the user named, in UTF-8. Raises ValueError naming it where that fails."""
    from dsmla_bench.places import failing_as

    with failing_as(ValueError, file, "cannot be written", "name another file"):
        file.write_text(text, encoding="utf-8", newline="\n")


def print_tables(tables: KernelTables) -> None:
    """Tables coloured and fitted to the terminal, or as plain text where standard output is none."""
    from dsmla_bench.reports.renderings import to_terminal, to_text

    width = terminal_width()
    if width is None:
        print_text(to_text(tables))
        return
    console = Console(highlight=False)
    for line in to_terminal(tables, width):
        console.print(line, soft_wrap=True)
    console.print()


def print_run(run: Run, *, as_json: bool) -> None:
    """A run as tables and the commands that repeat rows that failed, or as JSON: path, manifest, rows, commands."""
    from dsmla_bench.reports.kernel_report import run_tables
    from dsmla_bench.reports.repeating import repeats

    again = repeats(run)
    if as_json:
        print_json({"run": str(run.path), "manifest": run.manifest, "rows": run.records(), "repeat": again})
        return
    print_tables(run_tables(run, run.rows()))
    for command in list(again.values())[:MOST_REPEATS]:
        print_text(f"repeat: {command}", copied=True)
    if len(again) > MOST_REPEATS:
        print_text(f"repeat: {len(again) - MOST_REPEATS} more rows failed; --json has the commands of all")
