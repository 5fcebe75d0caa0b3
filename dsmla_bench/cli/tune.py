"""``dsmla-bench tune``: do the launch configurations that the kernels' tables hold still stand?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsmla_bench.cli.common import (
    ExitCode,
    choose,
    complain,
    optional_integers,
    print_json,
    print_text,
    recorded,
    split,
    terminal_width,
)
from dsmla_bench.cli.grid import fitted
from dsmla_bench.cli.kernels import choose_variants, execute

if TYPE_CHECKING:
    from dsmla_bench.reports.tuning import Entry, TunedCase
    from dsmla_bench.results import Run


def tune(
    operations: Annotated[
        str | None, typer.Option("--operations", "--ops", help="Operations, e.g. write,gather. Default: all tunable.")
    ] = None,
    formats: Annotated[
        str | None, typer.Option(help="Formats, e.g. bf16,fp8_ds_mla:amax448. Default: all but the lab's.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens per launch, e.g. 1,8192. Default: each operation's own.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Query heads, of operations that have them.")] = None,
    topk: Annotated[str | None, typer.Option(help="Cached rows that a query attends to (decode).")] = None,
    variants: Annotated[str | None, typer.Option(help="Ways of working, of operations that have several.")] = None,
    requests: Annotated[int, typer.Option(help="Requests that a gather's tokens belong to.", min=1)] = 8,
    processes: Annotated[int, typer.Option(help="Fresh processes that measure every configuration.", min=1)] = 1,
    out: Annotated[str, typer.Option(help="Folder or URL that tuning runs are kept in.")] = "runs/tune",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure every launch configuration of our kernels, and say which ones their tables should hold. Needs a GPU.

    Bytes are checked before anything is timed, by device activity with a cold L2. Sources stay as they are.

    Examples: dsmla-bench tune --ops write --tokens 8192,65536; dsmla-bench tune --ops decode --heads 16 --json
    """
    from dsmla_bench.bench.cases import Axes
    from dsmla_bench.bench.manifest import find_device
    from dsmla_bench.bench.tune import PROVIDER, TunePlan, tunable
    from dsmla_bench.kernels.formats import default_formats, get_format

    axes = Axes(
        operations=choose(operations, tunable(), "operation that can be tuned"),
        formats=tuple(dict.fromkeys(get_format(name).key for name in split(formats)))
        or tuple(fmt.key for fmt in default_formats()),
        providers=(PROVIDER,),
        tokens=optional_integers(tokens, "--tokens"),
        heads=optional_integers(heads, "--heads"),
        topk=optional_integers(topk, "--topk"),
        variant=choose_variants(variants),
        page_orders=("shuffled",),
        requests=requests,
    )
    found = find_device()
    if found is None:
        complain("no CUDA device here; tune times real kernels and needs one")
        raise typer.Exit(ExitCode.NO_DEVICE)
    plan = TunePlan(axes, (found[1],), processes, methods=("activity",))
    run = recorded(plan.create_run(out))
    cut_short = execute(plan, run)
    show(run, as_json=as_json)
    if cut_short is not None:
        raise typer.Exit(cut_short)
    raise typer.Exit(ExitCode.FINDINGS if any(m.status == "incorrect" for m in run.measurements) else ExitCode.FINE)


def show(run: Run, *, as_json: bool) -> None:
    """Print how every configuration fared, then the tables' entries."""
    from dsmla_bench.reports.tuning import entries, entry_facts, tuned_cases

    cases = tuned_cases(run.summaries(), run.manifest["present"])
    found = entries(cases)
    if as_json:
        facts = [entry_facts(entry) for entry in found]
        print_json({"run": str(run.path), "manifest": run.manifest, "entries": facts, "rows": run.records()})
        return
    for line in text(cases, found):
        print_text(line)
    print_text(f"run: {run.path}")


def text(cases: list[TunedCase], found: list[Entry]) -> list[str]:
    """Cases and entries as lines of text."""
    from dsmla_bench.reports.tuning import NEAR, case_lines, case_title, entry_lines

    lines, width = [], terminal_width()
    for case in cases:
        lines += [case_title(case), *fitted(case_lines(case), right=(1, 2, 3), width=width), ""]
    if found:
        lines += fitted(entry_lines(found), right=(4, 6), width=width, keys=2)
        lines.append(f"keep: within {NEAR:.0%} of the best in every format")
    return lines
