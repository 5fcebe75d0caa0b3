"""``dsmla-bench history``: runs over time, and whether the newest ones are worse than those before."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from dsmla_bench.cli.common import ExitCode, print_json, print_text

Store = Annotated[str, typer.Option(help="The history: a folder, or a URL such as s3://bucket/path.")]
Since = Annotated[str | None, typer.Option(help="Leave out runs from before this month, e.g. 2026-11.")]
Gpu = Annotated[
    str | None, typer.Option(help="Only GPUs of this model, or the one with this uuid; how it begins is enough.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

app = typer.Typer(
    help="Keep runs over time, and find what became worse. Needs no GPU and no torch.\n\n"
    "Examples: dsmla-bench history add runs/A --store history; dsmla-bench history check --store history",
    no_args_is_help=True,
)


@app.command()
def add(
    runs: Annotated[list[str], typer.Argument(help="Folders or URLs of runs.")],
    store: Store,
    commit: Annotated[
        str | None, typer.Option(help="Commit that was measured. Default: the one in the run's manifest.")
    ] = None,
) -> None:
    """Append runs to a history. Any number of machines may do so at once; to add a run again changes nothing.

    Examples: dsmla-bench history add runs/A runs/B --store history;
    dsmla-bench history add runs/A --store s3://bucket/history --commit 1a2b3c4d
    """
    from dsmla_bench.history import History
    from dsmla_bench.results import Run

    history = History(store)
    for path in runs:
        run = Run.load(path)
        added = history.add(run, commit)
        known = "" if added.new else ", which has it already"
        print_text(f"{run.run_id}: {added.rows} rows in {store}{known}")


@app.command("list")
def list_runs(
    store: Store,
    last: Annotated[int, typer.Option(help="How many of the newest runs.", min=1)] = 20,
    since: Since = None,
    gpu: Gpu = None,
    as_json: AsJson = False,
) -> None:
    """List the newest runs of a history: when, which commit, on what.

    Examples: dsmla-bench history list --store history --last 5;
    dsmla-bench history list --store s3://bucket/history --json
    """
    from dsmla_bench.history import History, Part

    runs = History(store).runs(Part(since, gpu))[-last:]
    if as_json:
        print_json(runs)
        return
    for run in runs:
        when, commit = run["started_at"][:16].replace("T", " "), (run["commit"] or "no commit")[:12]
        print_text(f"{when}  {run['run_id']}  {commit}  {run['device']}, driver {run['driver'] or 'unknown'}")


@app.command()
def check(store: Store, since: Since = None, gpu: Gpu = None, as_json: AsJson = False) -> None:
    """Look for regressions in the newest runs; exit code 1 if there is one.

    A regression is a change of level that its figures confirm. One unusual figure is listed and fails nothing. Rows
    with too few figures to compare are counted, and fail nothing either.

    Examples: dsmla-bench history check --store history;
    dsmla-bench history check --store s3://bucket/history --since 2026-11 --json
    """
    from dsmla_bench.history import History, Part
    from dsmla_bench.reports.findings import advice, findings_of, outcome
    from dsmla_bench.reports.trend_frame import read_trends

    tables = read_trends(History(store), Part(since, gpu))
    found = findings_of(tables)
    if as_json:
        print_json([{**dataclasses.asdict(finding), "advice": advice(finding)} for finding in found])
    else:
        for finding in found:
            print_text("\n    ".join(filter(None, (str(finding), advice(finding)))))
        print_text(outcome(tables, found))
    raise typer.Exit(ExitCode.FINDINGS if any(finding.fails for finding in found) else ExitCode.FINE)
