"""The command line: one typer command per question, one file per group of commands.

A command parses, calls one function of a lower floor and prints. torch is imported inside the commands that need it, so
that ``--help`` answers at once. Tables go to standard output, progress and warnings to standard error.

Exit codes: 0 fine, 1 findings (a row that is incorrect or failed), 2 usage, 3 no usable device.
"""

from __future__ import annotations

import os
import sys
import warnings

import typer

from dsmla_bench import __version__
from dsmla_bench.cli import (
    ab,
    about,
    accuracy,
    compare,
    compile,
    dashboard,
    demo,
    error,
    export,
    formats,
    history,
    kernels,
    report,
    selftest,
    tune,
)
from dsmla_bench.cli.common import ExitCode

app = typer.Typer(
    name="dsmla-bench",
    help="Speed and accuracy of the KV-cache formats of DeepSeek sparse MLA attention.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("kernels")(kernels.kernels)
app.command("compile")(compile.compile_kernels)
app.command("error")(error.error)
app.add_typer(accuracy.app, name="accuracy")
app.command("compare")(compare.compare)
app.command("ab")(ab.ab)
app.add_typer(history.app, name="history")
app.command("dashboard")(dashboard.dashboard)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("formats")(formats.formats)
app.command("list")(about.list_axes)
app.command("env")(about.env)
app.command("selftest")(selftest.selftest)
app.command("tune")(tune.tune)
app.command("demo")(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dsmla-bench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def main() -> None:
    """Run the command; a mistake of the user's becomes one sentence on standard error and exit code 2."""
    with warnings.catch_warnings():
        warnings.showwarning = _say_warning
        try:
            app()
        except BrokenPipeError:
            # The reader of standard output is gone; Python must not fail once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(ExitCode.READER_GONE)
        except (ValueError, OSError) as error:
            typer.echo(f"dsmla-bench: {error}", err=True)
            sys.exit(ExitCode.USAGE)


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"dsmla-bench: {message}", err=True)
