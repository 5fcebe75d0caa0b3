"""``dsmla-bench report``: a run as a table, pictures and files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmla_bench.cli.common import print_run, print_text
from dsmla_bench.cli.error import print_error_run


def report(
    run: Annotated[Path | None, typer.Argument(help="A run's folder. Default: the newest one in ./runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to. Default: RUN/report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and write nothing.")] = False,
) -> None:
    """Turn a run into a table (text, Markdown, CSV) and plots (PNG). Needs no GPU and no torch.

    Examples: dsmla-bench report; dsmla-bench report runs/20261129T120000-abc123 --out report
    """
    from dsmla_bench.reports.error_report import is_error_run, write_error_report
    from dsmla_bench.reports.report import write_report
    from dsmla_bench.results import Run, latest_run

    loaded = Run.load(run or latest_run(Path("runs")))
    of_errors = is_error_run(loaded)
    written = [] if as_json else (write_error_report if of_errors else write_report)(loaded, out)
    (print_error_run if of_errors else print_run)(loaded, as_json=as_json)
    for path in written:
        print_text(f"wrote {path}")
