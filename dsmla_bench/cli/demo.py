"""``dsmla-bench demo``: formats, kernels and report from end to end, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmla_bench.cli.common import print_text


def demo(out: Annotated[Path, typer.Option(help="Folder that runs are kept in.")] = Path("runs")) -> None:
    """Show the formats, sweep a few cases and report them: measured on a GPU, checked and compiled without one."""
    from dsmla_bench.bench.cases import Axes
    from dsmla_bench.bench.plan import SweepPlan
    from dsmla_bench.cli.formats import formats
    from dsmla_bench.cli.kernels import execute, exit_code, parse_architectures
    from dsmla_bench.cli.report import report
    from dsmla_bench.kernels.formats import default_formats
    from dsmla_bench.kernels.operations import all_operations
    from dsmla_bench.kernels.providers import load_providers

    print_text("1. The formats (dsmla-bench formats)\n")
    formats(None, 64, False)
    print_text("\n2. The kernels (dsmla-bench kernels --tokens 1,128,8192 --processes 1)\n")
    axes = Axes(
        operations=tuple(operation.name for operation in all_operations()),
        formats=tuple(fmt.key for fmt in default_formats()),
        providers=tuple(load_providers({})),
        tokens=(1, 128, 8192),
    )
    plan = SweepPlan(axes, parse_architectures(None), processes=1)
    run = plan.create_run(out)
    execute(plan, run)
    print_text(f"{len(run.rows())} cases in {run.path}\n\n3. The report (dsmla-bench report {run.path})\n")
    report(run.path, None, False)
    raise typer.Exit(exit_code(run))
