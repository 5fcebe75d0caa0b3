"""``dsmla-bench kernels``: the sweep."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dsmla_bench.cli.cluster import Ray, on_cluster
from dsmla_bench.cli.common import (
    ExitCode,
    choose,
    complain,
    integers,
    optional_integers,
    print_json,
    print_run,
    print_text,
    recorded,
    say,
    split,
)
from dsmla_bench.cli.libraries import FlashMlaLibrary, VllmLibrary, libraries
from dsmla_bench.cli.progress import counted
from dsmla_bench.cli.resuming import differing

if TYPE_CHECKING:
    from dsmla_bench.bench.plan import SweepPlan
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.results import Run

OUT_HELP = "Folder that runs are kept in, or a URL such as s3://bucket/runs."


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
    out: Annotated[str, typer.Option(help=OUT_HELP)] = "runs",
    resume: Annotated[
        str | None, typer.Option(help="Go on with this run: only what it lacks is measured, other options must agree.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="GPUs to measure on at once: all, or indices such as 0,1. Default: one per architecture."),
    ] = None,
    ray: Ray = None,
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
    chosen = parse_devices(devices)
    if paired is not None and chosen is not None and (chosen == "all" or len(chosen) > 1):
        raise ValueError("a side of ab measures on one device; name it with --devices")
    if ray is not None and (chosen is not None or paired is not None):
        raise ValueError("--ray measures on all GPUs of a cluster; --devices and ab choose among those of this machine")
    given = libraries(vllm=vllm_library, flash_mla=flash_mla_library, elsewhere=ray is not None)
    plan = SweepPlan(
        axes=axes,
        architectures=parse_architectures(arch, chosen),
        processes=processes,
        seed=seed,
        methods=choose(methods, list(METHODS), "method"),
        libraries={name: str(path) for name, path in given.items()},
        case_timeout_s=case_timeout,
        devices=chosen,
    )
    with on_cluster(plan, ray, everywhere=arch is None) if ray else contextlib.nullcontext(plan) as plan:
        if not dry_run:
            require(plan, required=require_device or paired is not None, paired=paired is not None)
            run = resumed(plan, resume) if resume else recorded(plan.create_run(out))
            if paired is not None:
                measure_in_turns(plan, run, paired)
                return
            cut_short = execute(plan, run)
    if dry_run:
        show_plan(plan, done=measured_in(resume), as_json=as_json)
        return
    print_run(run, as_json=as_json)
    if not as_json:
        print_text(f"run: {run.path}")
    if cut_short is not None:
        why = "interrupted; " if cut_short is ExitCode.INTERRUPTED else ""
        say(f"{why}finished rows are kept, go on with --resume {run.path}")
    raise typer.Exit(exit_code(run) if cut_short is None else cut_short)


def default_providers(paired: str | None) -> str | None:
    """None for all; for a side of ``ab`` all but the torch reference, in which no change is looked for."""
    from dsmla_bench.kernels.providers import load_providers

    return None if paired is None else ",".join(name for name in load_providers({}) if name != "reference")


def measure_in_turns(plan: SweepPlan, run: Run, paired: str) -> None:
    """Be a side of ``ab``: measure the processes that standard input asks for, and finish the run when it ends."""
    from dsmla_bench.bench.ab import answers_only, take_turns
    from dsmla_bench.bench.plan import calibrations

    run.manifest["paired"] = paired
    run.write_manifest()
    interrupted = False
    try:
        take_turns(str(run.path), lambda process, rows: plan.run_process(run, process, rows), sys.stdin, answers_only())
    except KeyboardInterrupt:
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is measured is written down in any case
    run.finish(**calibrations(run), interrupted=interrupted)


def choose_variants(text: str | None) -> tuple[str, ...] | None:
    """The named variants of operations, None for None. Raises ValueError listing what exists."""
    from dsmla_bench.kernels.operations import all_operations

    known = list(dict.fromkeys(name for operation in all_operations() for name in operation.variants))
    return None if text is None else choose(text, known, "variant")


def parse_devices(text: str | None) -> tuple[int, ...] | Literal["all"] | None:
    """``all``, or the indices of ``--devices``."""
    if text is not None and text.strip() == "all":
        return "all"
    return optional_integers(text, "--devices")


def parse_architectures(
    text: str | None, devices: tuple[int, ...] | Literal["all"] | None = None
) -> tuple[Architecture, ...]:
    """The named architectures; without a name those of ``devices``, the first GPU's, or sm90 where there is none."""
    from dsmla_bench.bench.manifest import find_devices
    from dsmla_bench.kernels.arch import Architecture

    names = split(text)
    if not names:
        found = find_devices()
        chosen = found[:1] if devices is None else [gpu for gpu in found if devices == "all" or gpu.index in devices]
        names = [gpu.arch for gpu in chosen or found[:1]] or ["sm90"]
    return tuple(dict.fromkeys(Architecture.parse(name) for name in names))


def require(plan: SweepPlan, *, required: bool, paired: bool) -> None:
    """Exit with ``NO_DEVICE`` when a device is required and missing; of two paired sides, ``ab`` says so once."""
    missing = plan.missing()
    if missing and required:
        names = ", ".join(arch.label for arch in missing)
        if not paired:
            complain(f"no {names} device here, and --require-device asks for one")
        raise typer.Exit(ExitCode.NO_DEVICE)


def resumed(plan: SweepPlan, path: str) -> Run:
    """The run to go on with. Raises ValueError when it was planned otherwise."""
    from dsmla_bench.results import ResumeError, Run

    try:
        run = Run.resume(path, plan.config, plan.identity(plan.describe()))
    except ResumeError as error:
        raise ValueError(differing(error)) from error
    say(f"{path} holds {len(run.measurements)} of {plan.steps()} measurements")
    return run


def execute(plan: SweepPlan, run: Run) -> ExitCode | None:
    """Measure everything the run lacks, telling how far it is, and finish it; an exit code where it was cut short."""
    from dsmla_bench.bench.fleet import NoLaneLeftError
    from dsmla_bench.bench.plan import calibrations

    cut_short = None
    with contextlib.closing(plan.run(run)) as measurements:
        try:
            for _ in counted(measurements, plan.steps(), len(run.measurements), name=lambda done: str(done.case)):
                pass
        except KeyboardInterrupt:
            cut_short = ExitCode.INTERRUPTED
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is measured is written down in any case
        except NoLaneLeftError as error:
            cut_short = ExitCode.NO_DEVICE
            complain(str(error))
    run.finish(**calibrations(run), interrupted=cut_short is not None)
    return cut_short


def measured_in(path: str | None) -> int:
    """How many measurements the run at ``path`` holds; 0 for None or a folder that is not there yet."""
    from dsmla_bench.places import place
    from dsmla_bench.results import Run

    return len(Run.load(path).measurements) if path is not None and place(path).exists() else 0


def show_plan(plan: SweepPlan, *, done: int, as_json: bool) -> None:
    """The cases of a plan, about how long they take from the start, and how many measurements are ``done``."""
    cases = [case for cases in plan.cases().values() for case in cases]
    missing = [arch.name for arch in plan.missing()]
    shares = plan.shares()
    if as_json:
        device_of = {case: gpu.uuid for gpu, share in shares.items() for case in share}
        listed: list[dict[str, Any]] = [
            {**vars(case), "row_id": case.row_id, "device_uuid": device_of.get(case)} for case in cases
        ]
        devices = [{**vars(gpu), "cases": len(share)} for gpu, share in shares.items()]
        cost = {"steps": plan.steps(), "done": done, "seconds": plan.seconds()}
        print_json({"cases": listed, **cost, "devices": devices, "not_timed": missing})
        return
    for case in cases:
        print_text(f"{case.row_id}  {case.arch} {case}")
    for gpu, share in shares.items():
        print_text(f"{gpu}: {len(share)} cases, about {plan.seconds_of(share) / 60:.1f} minutes")
    basis = " and ".join(["an H200"] * bool(shares) + ["two CPU cores that check and compile"] * bool(missing))
    about = f"about {plan.seconds() / 60:.1f} minutes, going by {basis}"
    print_text(f"{len(cases)} cases, {plan.steps()} measurements, {about}")
    if done:
        print_text(f"{done} measurements are done, {max(0, plan.steps() - done)} are left")
    if missing:
        print_text(f"no device of {', '.join(missing)} here: checked and compiled, not timed")


def exit_code(run: Run) -> ExitCode:
    """1 when any row is a finding."""
    from dsmla_bench.rows import FINDINGS

    return ExitCode.FINDINGS if set(run.rows()["status"]) & FINDINGS else ExitCode.FINE
