"""``dsmla-bench kernels``: the sweep."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dsmla_bench.cli.about import FlashMlaLibrary, VllmLibrary, libraries
from dsmla_bench.cli.common import (
    ExitCode,
    choose,
    integers,
    optional_integers,
    print_json,
    print_run,
    print_text,
    split,
)

if TYPE_CHECKING:
    from dsmla_bench.bench.plan import SweepPlan
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.results import Run
    from dsmla_bench.rows import Measurement

OUT_HELP = "Folder that runs are kept in."


def kernels(
    arch: Annotated[
        str | None, typer.Option(help="Architectures, e.g. sm90 or sm90,sm100. Default: this machine's GPU, else sm90.")
    ] = None,
    operations: Annotated[
        str | None, typer.Option("--operations", "--ops", help="Operations, e.g. write,gather. Default: all.")
    ] = None,
    formats: Annotated[
        str | None, typer.Option(help="Formats, e.g. bf16,fp8_ds_mla:amax448. Default: all but the lab's.")
    ] = None,
    providers: Annotated[str | None, typer.Option(help="Providers, e.g. triton,vllm. Default: all.")] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens per launch, e.g. 1,8192. Default: each operation's own.")
    ] = None,
    heads: Annotated[str | None, typer.Option(help="Query heads, of operations that have them.")] = None,
    topk: Annotated[str | None, typer.Option(help="Cached rows that a query attends to (decode).")] = None,
    queries: Annotated[str | None, typer.Option(help="Query tokens per request (decode).")] = None,
    variants: Annotated[str | None, typer.Option(help="Ways of working, of operations that have several.")] = None,
    block_sizes: Annotated[str, typer.Option(help="Tokens per cache page.")] = "64",
    page_orders: Annotated[
        str | None, typer.Option(help="ordered, shuffled or both. Default: each operation's own.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests that a gather's tokens belong to.", min=1)] = 8,
    l2: Annotated[str, typer.Option(help="State of the L2 cache: cold, hot or cold,hot.")] = "cold",
    methods: Annotated[
        str, typer.Option(help="Timing methods, the headline first: activity,graph, or one of them.")
    ] = "activity,graph",
    processes: Annotated[int, typer.Option(help="Fresh processes to measure in.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of inputs and orders.", min=0)] = 0,
    case_timeout: Annotated[float, typer.Option(help="Seconds after which a case counts as hung.", min=1)] = 120.0,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run: only what it lacks is measured, other options must agree.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cases and about how long they take.")] = False,
    vllm_library: VllmLibrary = None,
    flash_mla_library: FlashMlaLibrary = None,
    require_device: Annotated[
        bool, typer.Option("--require-device", help="Fail with exit code 3 where there is no GPU of the architecture.")
    ] = False,
    paired: Annotated[
        str | None, typer.Option(hidden=True, help="Be one side of `ab`: measure a process when told to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Sweep cache formats: check every kernel's bytes, then time it beside production's.

    Where there is no GPU of the architecture, kernels are checked in the interpreter and cross-compiled instead.

    Examples: dsmla-bench kernels --arch sm90; dsmla-bench kernels --formats fp8_ds_mla --ops gather --tokens 8192
    """
    from dsmla_bench.bench.cases import Axes
    from dsmla_bench.bench.device import METHODS
    from dsmla_bench.bench.plan import SweepPlan
    from dsmla_bench.kernels.formats import default_formats, get_format
    from dsmla_bench.kernels.operations import PAGE_ORDERS, all_operations
    from dsmla_bench.kernels.providers import load_providers

    axes = Axes(
        operations=choose(operations, [operation.name for operation in all_operations()], "operation"),
        formats=tuple(dict.fromkeys(get_format(name).key for name in split(formats)))
        or tuple(fmt.key for fmt in default_formats()),
        providers=choose(providers or default_providers(paired), list(load_providers({})), "provider"),
        tokens=optional_integers(tokens, "--tokens"),
        heads=optional_integers(heads, "--heads"),
        topk=optional_integers(topk, "--topk"),
        queries=optional_integers(queries, "--queries"),
        variant=choose_variants(variants),
        block_sizes=integers(block_sizes, "--block-sizes"),
        page_orders=choose(page_orders, list(PAGE_ORDERS), "page order") if page_orders else None,
        requests=requests,
        l2_states=choose(l2, ["cold", "hot"], "L2 state"),
    )
    given = libraries(vllm=vllm_library, flash_mla=flash_mla_library)
    plan = SweepPlan(
        axes=axes,
        architectures=parse_architectures(arch),
        processes=processes,
        seed=seed,
        methods=choose(methods, list(METHODS), "method"),
        libraries={name: str(path) for name, path in given.items()},
        case_timeout_s=case_timeout,
    )
    if dry_run:
        show_plan(plan, done=measured_in(resume), as_json=as_json)
        return
    require(plan, required=require_device or paired is not None)
    run = resumed(plan, resume) if resume else plan.create_run(out)
    if paired is not None:
        measure_in_turns(plan, run, paired)
        return
    interrupted = execute(plan, run)
    print_run(run, as_json=as_json)
    if not as_json:
        print_text(f"run: {run.path}")
    if interrupted:
        typer.echo(f"dsmla-bench: interrupted; finished rows are kept, go on with --resume {run.path}", err=True)
    raise typer.Exit(ExitCode.INTERRUPTED if interrupted else exit_code(run))


def default_providers(paired: str | None) -> str | None:
    """None for all; for a side of ``ab`` all but the torch reference, in which no change is looked for."""
    from dsmla_bench.kernels.providers import load_providers

    return None if paired is None else ",".join(name for name in load_providers({}) if name != "reference")


def measure_in_turns(plan: SweepPlan, run: Run, paired: str) -> None:
    """Be a side of ``ab``: measure the processes that standard input asks for, and finish the run when it ends."""
    from dsmla_bench.bench.ab import answers_only, take_turns
    from dsmla_bench.bench.plan import calibration_of

    run.manifest["paired"] = paired
    run.write_manifest()
    interrupted = False
    try:
        take_turns(run.path, lambda process, rows: plan.run_process(run, process, rows), sys.stdin, answers_only())
    except KeyboardInterrupt:
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is measured is written down in any case
    run.finish(calibration=calibration_of(run), interrupted=interrupted)


def choose_variants(text: str | None) -> tuple[str, ...] | None:
    """The named variants of operations, None for None. Raises ValueError listing what exists."""
    from dsmla_bench.kernels.operations import all_operations

    known = list(dict.fromkeys(name for operation in all_operations() for name in operation.variants))
    return None if text is None else choose(text, known, "variant")


def parse_architectures(text: str | None) -> tuple[Architecture, ...]:
    """The named architectures; without a name the first GPU's, or sm90 where there is none."""
    from dsmla_bench.bench.manifest import find_device
    from dsmla_bench.kernels.arch import Architecture

    if names := split(text):
        return tuple(dict.fromkeys(Architecture.parse(name) for name in names))
    found = find_device()
    return (found[1] if found else Architecture.parse("sm90"),)


def require(plan: SweepPlan, *, required: bool) -> None:
    """Exit with ``NO_DEVICE`` when a device is required and missing."""
    missing = plan.missing()
    if missing and required:
        names = ", ".join(arch.label for arch in missing)
        typer.echo(f"dsmla-bench: no {names} device here, and --require-device asks for one", err=True)
        raise typer.Exit(ExitCode.NO_DEVICE)


def resumed(plan: SweepPlan, path: Path) -> Run:
    """The run to go on with. Raises ValueError when it was planned otherwise."""
    from dsmla_bench.bench.manifest import describe
    from dsmla_bench.results import Run

    run = Run.resume(path, plan.config, plan.identity(describe()))
    typer.echo(f"dsmla-bench: {path} holds {len(run.measurements)} of {plan.steps()} measurements", err=True)
    return run


def execute(plan: SweepPlan, run: Run) -> bool:
    """Measure everything the run lacks, with a progress bar, and finish it; whether Ctrl-C cut it short."""
    from dsmla_bench.bench.plan import calibration_of

    interrupted = False
    with contextlib.closing(plan.run(run)) as measurements:
        try:
            for _ in with_progress(measurements, len(run.measurements), plan.steps()):
                pass
        except KeyboardInterrupt:
            interrupted = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is measured is written down in any case
    run.finish(calibration=calibration_of(run), interrupted=interrupted)
    return interrupted


def with_progress(measurements: Iterator[Measurement], done: int, total: int) -> Iterator[Measurement]:
    """Draw a progress bar with the time left on standard error while measurements pass through."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total, completed=done)
        for measurement in measurements:
            progress.update(task, advance=1, description=str(measurement.case))
            yield measurement


def measured_in(path: Path | None) -> int:
    """How many measurements the run at ``path`` holds; 0 for None or a folder that is not there yet."""
    from dsmla_bench.results import Run

    return len(Run.load(path).measurements) if path is not None and path.exists() else 0


def show_plan(plan: SweepPlan, *, done: int, as_json: bool) -> None:
    """The cases of a plan, about how long they take from the start, and how many measurements are ``done``."""
    cases = [case for cases in plan.cases().values() for case in cases]
    missing = [arch.name for arch in plan.missing()]
    if as_json:
        listed: list[dict[str, Any]] = [{**vars(case), "row_id": case.row_id} for case in cases]
        print_json(
            {"cases": listed, "steps": plan.steps(), "done": done, "seconds": plan.seconds(), "not_timed": missing}
        )
        return
    for case in cases:
        print_text(f"{case.row_id}  {case.arch} {case}")
    print_text(f"{len(cases)} cases, {plan.steps()} measurements, about {plan.seconds() / 60:.1f} minutes")
    if done:
        print_text(f"{done} measurements are done, {max(0, plan.steps() - done)} are left")
    if missing:
        print_text(f"no device of {', '.join(missing)} here: checked and compiled, not timed")


def exit_code(run: Run) -> ExitCode:
    """1 when any row is a finding."""
    from dsmla_bench.rows import FINDINGS

    return ExitCode.FINDINGS if set(run.rows()["status"]) & FINDINGS else ExitCode.FINE
