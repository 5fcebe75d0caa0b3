"""``dsmla-bench compile``: every kernel for any architecture, without a GPU, and the static regression gate."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.common import (
    ExitCode,
    choose,
    integers,
    optional_integers,
    print_json,
    print_run,
    print_text,
    recorded,
    say,
    split,
)
from dsmla_bench.cli.kernels import OUT_HELP, exit_code
from dsmla_bench.cli.progress import counted

if TYPE_CHECKING:
    from dsmla_bench.bench.compile_plan import CompilePlan
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.reports.static_changes import StaticChanges
    from dsmla_bench.results import Run


def compile_kernels(
    arch: Annotated[str, typer.Option(help="Targets, e.g. sm90,sm100, or all.")] = "sm90,sm100,sm103,sm120",
    operations: Annotated[
        str | None, typer.Option("--operations", "--ops", help="Operations, e.g. write,gather. Default: all.")
    ] = None,
    formats: Annotated[
        str | None, typer.Option(help="Formats, e.g. bf16,fp8_ds_mla:amax448. Default: all but the lab's.")
    ] = None,
    providers: Annotated[str, typer.Option(help="Providers whose kernels are Triton's.")] = "triton",
    tokens: Annotated[
        str | None, typer.Option(help="Tokens per launch, e.g. 1,8192. Default: each operation's own.")
    ] = None,
    block_sizes: Annotated[str, typer.Option(help="Tokens per cache page.")] = "64",
    workers: Annotated[int | None, typer.Option(help="Processes that compile. Default: one per CPU.", min=1)] = None,
    against: Annotated[
        str | None, typer.Option(help="An earlier run to compare with; a regression makes the exit code 1.")
    ] = None,
    out: Annotated[str, typer.Option(help=OUT_HELP)] = "runs",
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the compiler's words on what it refused.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Compile every kernel for any target: registers, spills, occupancy, machine code, predicted floor. Needs no GPU.

    Examples: dsmla-bench compile --arch sm90,sm100; dsmla-bench compile --against runs/20261129T120000-abc123
    """
    from dsmla_bench.bench.cases import Axes
    from dsmla_bench.bench.compile_plan import CompilePlan
    from dsmla_bench.bench.cross_compile import default_workers
    from dsmla_bench.kernels.formats import default_formats, get_format
    from dsmla_bench.kernels.operations import all_operations
    from dsmla_bench.kernels.providers import load_providers
    from dsmla_bench.results import Run

    axes = Axes(
        operations=choose(operations, [operation.name for operation in all_operations()], "operation"),
        formats=tuple(get_format(name).key for name in split(formats)) or tuple(fmt.key for fmt in default_formats()),
        providers=choose(providers, list(load_providers({})), "provider"),
        tokens=optional_integers(tokens, "--tokens"),
        block_sizes=integers(block_sizes, "--block-sizes"),
        page_orders=("ordered",),
    )
    before = Run.load(against) if against else None
    plan = CompilePlan(axes, targets(arch), workers or default_workers())
    run = recorded(plan.create_run(out))
    interrupted = execute(plan, run)
    changes = compare(before, run) if before and not interrupted else None
    show(run, before, changes, verbose=verbose, as_json=as_json)
    if interrupted:
        say("interrupted; the kernels compiled so far are kept, and will not be again")
        raise typer.Exit(ExitCode.INTERRUPTED)
    raise typer.Exit(ExitCode.FINDINGS if changes and changes.findings else exit_code(run))


def targets(text: str) -> tuple[Architecture, ...]:
    """The named architectures, each once; ``all`` is every known one. Raises ValueError."""
    from dsmla_bench.kernels.arch import KNOWN, Architecture

    if text.strip().lower() == "all":
        return KNOWN
    found = tuple(dict.fromkeys(Architecture.parse(name) for name in split(text)))
    if not found:
        raise ValueError(f"--arch must name targets, e.g. sm90,sm100, or be all; found {text!r}")
    return found


def execute(plan: CompilePlan, run: Run) -> bool:
    """Compile everything telling how far it is, and finish the run; whether Ctrl-C cut it short."""
    interrupted = False
    with contextlib.closing(plan.run(run)) as measurements:
        try:
            for _ in counted(measurements, len(plan.cases()), name=lambda done: str(done.case)):
                pass
        except KeyboardInterrupt:
            interrupted = True
    run.finish(interrupted=interrupted)
    return interrupted


def compare(before: Run, now: Run) -> StaticChanges:
    """What changed between two runs. Raises ValueError when they have nothing in common."""
    from dsmla_bench.reports.static_changes import static_changes

    return static_changes(before.rows(), now.rows())


def show(run: Run, before: Run | None, changes: StaticChanges | None, *, verbose: bool, as_json: bool) -> None:
    """Print the run, and what changed since ``before``."""
    from dsmla_bench.reports.static_changes import describe

    if as_json:
        document: dict[str, Any] = {"run": str(run.path), "manifest": run.manifest, "rows": run.records()}
        print_json(document | ({"changes": dataclasses.asdict(changes)} if changes else {}))
        return
    print_run(run, as_json=False)
    details = {m.facts["detail"]: m.case for m in run.measurements if m.facts.get("detail")}
    if details and not verbose:
        print_text("--verbose shows what the compiler said")
    for text, case in details.items() if verbose else []:
        print_text(f"\n{case.arch} {case}: the compiler said\n{text}")
    print_text(f"run: {run.path}")
    if changes is not None and before is not None:
        print_text("\n" + "\n".join(describe(changes, before.manifest, run.manifest)))
