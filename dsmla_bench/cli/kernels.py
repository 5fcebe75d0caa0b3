"""``dsmla-bench kernels``: the sweep."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dsmla_bench.cli.about import VllmLibrary
from dsmla_bench.cli.common import ExitCode, choose, integers, print_run, print_text, split

if TYPE_CHECKING:
    from dsmla_bench.bench.cases import Axes
    from dsmla_bench.bench.worker import WorkerConfig
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.results import Run
    from dsmla_bench.rows import Measurement


def kernels(
    arch: Annotated[
        str | None, typer.Option(help="Architectures, e.g. sm90 or sm90,sm100. Default: this machine's GPU, else sm90.")
    ] = None,
    operations: Annotated[
        str | None, typer.Option("--operations", "--ops", help="Operations, e.g. write,gather. Default: all.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(help="Formats, e.g. bf16,fp8_ds_mla:amax448. Default: every format's default revision."),
    ] = None,
    providers: Annotated[str | None, typer.Option(help="Providers, e.g. triton,vllm. Default: all.")] = None,
    tokens: Annotated[str, typer.Option(help="Tokens per launch.")] = "1,16,128,1024,8192,65536",
    block_sizes: Annotated[str, typer.Option(help="Tokens per cache page.")] = "64",
    page_orders: Annotated[str | None, typer.Option(help="ordered, shuffled or both. Default: both.")] = None,
    requests: Annotated[int, typer.Option(help="Requests that a gather's tokens belong to.", min=1)] = 8,
    l2: Annotated[str, typer.Option(help="State of the L2 cache: cold, hot or cold,hot.")] = "cold",
    processes: Annotated[int, typer.Option(help="Fresh processes to measure in.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of inputs and orders.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder that runs are kept in.")] = Path("runs"),
    vllm_library: VllmLibrary = None,
    require_device: Annotated[
        bool, typer.Option(help="Fail with exit code 3 where there is no GPU of the architecture.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Sweep cache formats: check every kernel's bytes, then time it beside production's.

    Where there is no GPU of the architecture, kernels are checked in the interpreter and cross-compiled instead.

    Examples: dsmla-bench kernels --arch sm90 ·· dsmla-bench kernels --formats fp8_ds_mla --ops gather --tokens 8192
    """
    from dsmla_bench.bench.cases import PAGE_ORDERS, Axes
    from dsmla_bench.bench.worker import WorkerConfig
    from dsmla_bench.kernels.formats import default_formats, get_format
    from dsmla_bench.kernels.operations import all_operations
    from dsmla_bench.kernels.providers import load_providers

    libraries = {"vllm": str(vllm_library)} if vllm_library else {}
    axes = Axes(
        operations=choose(operations, [operation.name for operation in all_operations()], "operation"),
        formats=tuple(get_format(name).key for name in split(formats)) or tuple(fmt.key for fmt in default_formats()),
        providers=choose(providers, list(load_providers({})), "provider"),
        tokens=integers(tokens, "--tokens"),
        block_sizes=integers(block_sizes, "--block-sizes"),
        page_orders=choose(page_orders, list(PAGE_ORDERS), "page order"),
        requests=requests,
        l2_states=choose(l2, ["cold", "hot"], "L2 state"),
    )
    config = WorkerConfig("cuda", seed=seed, libraries=libraries)
    run = sweep(axes, parse_architectures(arch), config, processes, out, require_device=require_device)
    print_run(run, as_json=as_json)
    if not as_json:
        print_text(f"run: {run.path}")
    raise typer.Exit(exit_code(run))


def parse_architectures(text: str | None) -> list[Architecture]:
    """The named architectures; without a name the first GPU's, or sm90 where there is none."""
    from dsmla_bench.bench.manifest import find_device
    from dsmla_bench.kernels.arch import Architecture

    if text:
        return [Architecture.parse(name) for name in split(text)]
    found = find_device()
    return [found[1] if found else Architecture.parse("sm90")]


def sweep(
    axes: Axes,
    architectures: list[Architecture],
    config: WorkerConfig,
    processes: int,
    out: Path,
    *,
    require_device: bool,
) -> Run:
    """Measure or check every case of the axes on every architecture; returns the finished run.

    Exits with ``NO_DEVICE`` when a device is required and missing.
    """
    import dataclasses

    from dsmla_bench.bench import manifest
    from dsmla_bench.bench.cases import expand
    from dsmla_bench.bench.sweep import check_offline, measure, steps
    from dsmla_bench.results import Run

    devices = {arch: manifest.find_device(arch) for arch in architectures}
    missing = [arch for arch, device in devices.items() if device is None]
    if missing and require_device:
        names = ", ".join(arch.label for arch in missing)
        typer.echo(f"dsmla-bench: no {names} device here, and --require-device asks for one", err=True)
        raise typer.Exit(ExitCode.NO_DEVICE)
    cases = {arch: expand(axes, arch) for arch in architectures}
    facts = manifest.describe()
    present = [device[0] for device in devices.values() if device is not None]
    if present:
        facts["device"] = manifest.describe_device(present[0])
    if missing:
        facts["not_timed"] = why_not_timed(missing)
    settings = {"config": axes.as_dict(), "seed": config.seed, "processes": processes}
    run = Run.create(out, {"argv": ["dsmla-bench", *sys.argv[1:]], **settings, **facts})
    streams: list[Iterator[Measurement]] = []
    total = 0
    for arch, device in devices.items():
        if device is None:
            streams.append(check_offline(run, cases[arch], config))
            total += len(cases[arch])
        else:
            streams.append(measure(run, cases[arch], dataclasses.replace(config, device=device[0]), processes))
            total += steps(cases[arch], processes)
    for _ in with_progress(itertools.chain(*streams), total):
        pass
    run.finish(calibration=calibration_of(run))
    return run


def why_not_timed(missing: list[Architecture]) -> str:
    """One sentence on what was done in place of timing on architectures that have no device here."""
    import torch

    names = ", ".join(arch.label for arch in missing)
    found = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA device"
    return (
        f"this machine has no {names} device (found {found}); "
        f"every kernel was checked in the interpreter and compiled for {names}"
    )


def with_progress(measurements: Iterator[Measurement], total: int) -> Iterator[Measurement]:
    """Draw a progress bar with the time left on standard error while measurements pass through."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=total)
        for measurement in measurements:
            progress.update(task, advance=1, description=str(measurement.case))
            yield measurement


def calibration_of(run: Run) -> dict[str, float]:
    """Medians of what the timed rows say of the machine: floor, quantum, copy bandwidth."""
    rows = run.rows()
    known = {name: rows[name].dropna() for name in ("floor_us", "quantum_us", "copy_gbps")}
    return {name: float(values.median()) for name, values in known.items() if len(values)}


def exit_code(run: Run) -> ExitCode:
    """1 when any row is a finding."""
    from dsmla_bench.rows import FINDINGS

    return ExitCode.FINDINGS if set(run.rows()["status"]) & FINDINGS else ExitCode.FINE
