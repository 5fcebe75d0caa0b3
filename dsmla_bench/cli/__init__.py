"""The command line: one typer command per question, one file per group of commands.

A command parses, calls one function of a lower floor and prints. torch is imported inside the commands that need it, so
that ``--help`` answers at once. Tables go to standard output, progress and warnings to standard error.

Exit codes: 0 fine, 1 findings (a row that is incorrect or failed), 2 usage and whatever else stopped a command, 3 no
usable device.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings

import typer

from dsmla_bench import __version__
from dsmla_bench.cli import (
    ab,
    accuracy,
    compare,
    compile,
    dashboard,
    demo,
    env,
    error,
    export,
    formats,
    history,
    kernels,
    listing,
    report,
    selftest,
    tune,
)
from dsmla_bench.cli.common import ExitCode, complain, print_text
from dsmla_bench.cli.mistakes import is_help, sentence
from dsmla_bench.cli.root import Root
from dsmla_bench.cli.settings import Settings, invocation

app = typer.Typer(
    name="dsmla-bench",
    cls=Root,
    help="Speed and accuracy of the KV-cache formats of DeepSeek sparse MLA attention.\n\n"
    "Examples: dsmla-bench demo; dsmla-bench kernels --formats fp8_ds_mla --tokens 8192",
    epilog="Options also come from environment variables such as DSMLA_BENCH_KERNELS_TOKENS and from dsmla-bench.toml; "
    "--dump-config shows which came from where.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: option names are never cut short, whatever the width and the encoding
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("kernels", short_help="Check every kernel's bytes, then time it beside production's.")(kernels.kernels)
app.command("compile", short_help="Compile every kernel for any target, and compare with before.")(
    compile.compile_kernels
)
app.command("error", short_help="Measure the error of the formats against bf16.")(error.error)
app.add_typer(accuracy.app, name="accuracy", short_help="Score a model with its KV cache in each format.")
app.command("compare", short_help="Compare two runs: did anything get worse?")(compare.compare)
app.command("ab", short_help="Measure two installs or libraries in turns, and compare them.")(ab.ab)
app.add_typer(history.app, name="history", short_help="Keep runs over time, and find what became worse.")
app.command("dashboard", short_help="Write a history as static pages.")(dashboard.dashboard)
app.command("report", short_help="Write runs as one page, tables and pictures.")(report.report)
app.command("export", short_help="Write a run for other tools.")(export.export)
app.command("formats", short_help="Show the formats, what is stored where, and what fits.")(formats.formats)
app.command("list", short_help="List operations, formats and providers.")(listing.list_axes)
app.command("env", short_help="Show what a run records of this machine.")(env.env)
app.command("selftest", short_help="Time what is known, and show what this machine resolves.")(selftest.selftest)
app.command("tune", short_help="Look for better launch configurations of our kernels.")(tune.tune)
app.command("demo", short_help="Ask every question once, small.")(demo.demo)


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
    """Run the command; whatever stops it becomes one sentence on standard error and exit code 2."""
    with warnings.catch_warnings(), invocation() as settings:
        warnings.showwarning = _say_warning
        sys.exit(_exit_code(settings))


def _exit_code(settings: Settings) -> int:
    """What the command's process exits with."""
    try:
        return int(app(prog_name="dsmla-bench", standalone_mode=False) or ExitCode.FINE)
    except BrokenPipeError:
        _let_go_of_output()
        return ExitCode.READER_GONE
    except Exception as error:
        if settings.debug:
            traceback.print_exc()
        if is_help(error):
            print_text(str(error))
        else:
            complain(sentence(error, settings))
        try:
            sys.stdout.flush()
        except OSError:
            _let_go_of_output()
        return ExitCode.USAGE


def _let_go_of_output() -> None:
    """Standard output takes no more; Python must not fail once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    complain(str(message))
