"""``dsmla-bench report``: runs as a page, tables, pictures and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsmla_bench.cli.common import print_json, print_run, print_text

if TYPE_CHECKING:
    from dsmla_bench.results import Run

RUNS_HELP = "Folders or URLs of runs. Default: the newest in ./runs."


def report(
    runs: Annotated[list[str] | None, typer.Argument(help=RUNS_HELP)] = None,
    out: Annotated[str | None, typer.Option(help="Folder or URL to write. Default: report in the first run's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and write nothing.")] = False,
) -> None:
    """Turn runs into one page with a summary, tables and plots, and into Markdown, CSV, PNG and SVG. Needs no GPU.

    Any runs go together: of kernels, compiled kernels, errors, accuracy. Two runs of one `ab` are compared too.

    Examples: dsmla-bench report; dsmla-bench report runs/KERNELS runs/ERRORS runs/ACCURACY --out report
    """
    from dsmla_bench.reports.report import write_report
    from dsmla_bench.results import Run, latest_run

    loaded = [Run.load(path) for path in runs] if runs else [Run.load(latest_run("runs"))]
    if as_json and len(loaded) > 1:
        raise ValueError(f"--json prints one run, found {len(loaded)}; name one")
    written = [] if as_json else write_report(loaded, out)
    for run in loaded:
        show(run, as_json=as_json)
    for path in written:
        print_text(f"wrote {path}")


def show(run: Run, *, as_json: bool) -> None:
    """A run of any kind as tables or JSON."""
    from dsmla_bench.cli.accuracy import document, print_accuracy_run
    from dsmla_bench.cli.error import print_error_run
    from dsmla_bench.reports import accuracy_report, error_report
    from dsmla_bench.reports.kernel_report import measured_rows

    if error_report.is_error_run(run):
        print_error_run(run, as_json=as_json)
    elif accuracy_report.is_accuracy_run(run):
        print_json(document(run)) if as_json else print_accuracy_run(run)
    else:
        measured_rows(run)
        print_run(run, as_json=as_json)
