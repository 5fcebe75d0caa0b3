"""``dsmla-bench export``: a run for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmla_bench.cli.common import print_text, write_text


def export(
    run: Annotated[str | None, typer.Argument(help="A run's folder or URL. Default: the newest one in ./runs.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Consumer, e.g. bencher.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")] = None,
) -> None:
    """Write a run for a CI tracker, a monitoring system or a spreadsheet. Needs no GPU and no torch.

    Rows that are not ok are left out or marked, never 0. Without a run and --to, the consumers are listed.

    Examples: dsmla-bench export; dsmla-bench export runs/A --to bencher --out bencher.json
    """
    from dsmla_bench.reports.exporters import all_exporters, get_exporter
    from dsmla_bench.results import Run, latest_run

    if to is None and (run or out):
        raise ValueError(f"export needs --to, which says for whom: one of {', '.join(all_exporters())}")
    if to is None:
        for exporter in all_exporters().values():
            print_text(f"{exporter.name:32}{exporter.summary}")
        return
    text = get_exporter(to).export(Run.load(run or latest_run("runs")))
    if out is None:
        typer.echo(text.encode("utf-8"), nl=False)
    else:
        write_text(out, text)
