"""``dsmla-bench compare``: did anything get worse between two runs? With an exit code that CI can trust."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsmla_bench.cli.common import ExitCode, print_json, print_tables, print_text, write_text

if TYPE_CHECKING:
    from dsmla_bench.reports.comparison import Comparison

Markdown = Annotated[Path | None, typer.Option("--markdown", help="Also write a pull-request comment to this file.")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")]
Github = Annotated[bool, typer.Option("--github", help="Also print annotations for GitHub Actions.")]
Everything = Annotated[bool, typer.Option("--all", help="List what is the same too.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def compare(
    base: Annotated[str, typer.Argument(help="The run to compare with: a folder or URL.")],
    head: Annotated[str, typer.Argument(help="The run to judge.")],
    force: Annotated[
        bool, typer.Option("--force", help="Compare unlike runs too (another GPU, method, L2 state), and say so.")
    ] = False,
    everything: Everything = False,
    markdown: Markdown = None,
    junit: Junit = None,
    github: Github = False,
    as_json: AsJson = False,
) -> None:
    """Compare two runs row by row: slow, fast, same, ambiguous or unresolved; bytes, errors and code exactly.

    Exits with 1 when anything is slow, incorrect or worse. Needs no GPU and no torch.

    Examples: dsmla-bench compare runs/A runs/B; dsmla-bench compare runs/A runs/B --markdown comment.md --github
    """
    from dsmla_bench.reports.comparison import compare as compare_runs
    from dsmla_bench.results import Run

    found = compare_runs(Run.load(base), Run.load(head), force=force)
    show(found, everything=everything, markdown=markdown, junit=junit, github=github, as_json=as_json)
    raise typer.Exit(ExitCode.FINDINGS if found.findings else ExitCode.FINE)


def show(
    found: Comparison,
    *,
    everything: bool,
    markdown: Path | None,
    junit: Path | None,
    github: bool,
    as_json: bool,
) -> None:
    """Print a comparison and write the files that were asked for, in UTF-8."""
    from dsmla_bench.reports.comparison_exports import to_annotations, to_document, to_junit
    from dsmla_bench.reports.comparison_tables import comparison_markdown, comparison_tables

    if as_json:
        print_json(to_document(found))
    else:
        print_tables(comparison_tables(found, everything=everything))
    if github:
        print_text(to_annotations(found).rstrip("\n"))
    for path, render in ((markdown, comparison_markdown), (junit, to_junit)):
        if path is not None:
            write_text(path, render(found))
