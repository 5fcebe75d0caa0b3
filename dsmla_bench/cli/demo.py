"""``dsmla-bench demo``: every question once, small, from end to end, on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsmla_bench.cli.common import print_text, recorded
from dsmla_bench.cli.kernels import OUT_HELP

if TYPE_CHECKING:
    from dsmla_bench.results import Run

DOCUMENTS, WINDOWS = 16, 4
"""Of each task, and of text: few enough for half a minute on two cores, too few for a verdict."""


def demo(out: Annotated[str, typer.Option(help=OUT_HELP)] = "runs") -> None:
    """Show the formats, sweep a few cases and report them, measure errors and score a small model.

    Kernels are timed on a GPU, checked and compiled without one. Exits with 1 when the sweep has findings.

    Examples: dsmla-bench demo; dsmla-bench demo --out /tmp/runs
    """
    from dsmla_bench.cli.error import error
    from dsmla_bench.cli.formats import formats
    from dsmla_bench.cli.kernels import exit_code
    from dsmla_bench.cli.report import report

    print_text("1. The formats (dsmla-bench formats)\n")
    formats(None, 64, False)
    print_text("\n2. The kernels (dsmla-bench kernels --ops write,gather --tokens 1,128,8192 --processes 1)\n")
    run = sweep(out)
    print_text(f"{len(run.rows())} cases in {run.path}\n\n3. The report (dsmla-bench report {run.path})\n")
    report([str(run.path)], None, False)
    print_text("\n4. The error of the formats (dsmla-bench error --sigma 1)\n")
    error(sigma="1", out=out)
    print_text(f"\n5. Task scores (dsmla-bench accuracy --limit {DOCUMENTS} --windows {WINDOWS} --ablate none)\n")
    score(out)
    raise typer.Exit(exit_code(run))


def sweep(out: str) -> Run:
    """A finished sweep of write and gather by every format and provider over three numbers of tokens."""
    from dsmla_bench.bench.cases import Axes
    from dsmla_bench.bench.plan import SweepPlan
    from dsmla_bench.cli.kernels import execute, parse_architectures
    from dsmla_bench.kernels.formats import default_formats
    from dsmla_bench.kernels.providers import load_providers

    axes = Axes(
        operations=("write", "gather"),
        formats=tuple(fmt.key for fmt in default_formats()),
        providers=tuple(load_providers({})),
        tokens=(1, 128, 8192),
    )
    plan = SweepPlan(axes, parse_architectures(None), processes=1)
    run = recorded(plan.create_run(out))
    execute(plan, run)
    return run


def score(out: str) -> None:
    """Score the embedded model on a few documents and print the tables; say what is missing where it cannot be."""
    from dsmla_bench.cli.accuracy import DEFAULT_FORMATS, chosen_device, run_and_show
    from dsmla_bench.cli.common import split
    from dsmla_bench.evals.accuracy_environment import require_extra, set_environment
    from dsmla_bench.evals.embedded import embedded_model

    try:
        require_extra()
        embedded_model()
    except ValueError as missing:
        print_text(f"left out: {missing}")
        return
    set_environment(online=False)
    from dsmla_bench.evals.accuracy_plan import AccuracyPlan
    from dsmla_bench.evals.lm_eval_tasks import TaskRecipe

    formats, recipe = tuple(split(DEFAULT_FORMATS)), TaskRecipe(limit=DOCUMENTS)
    plan = AccuracyPlan(formats=formats, recipe=recipe, windows=WINDOWS, device=chosen_device(None))
    run_and_show(plan, out, None, (), as_json=False)
