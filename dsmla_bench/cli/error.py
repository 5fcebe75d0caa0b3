"""``dsmla-bench error``: what a format costs in numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.common import (
    ExitCode,
    choose,
    complain,
    print_json,
    print_tables,
    print_text,
    recorded,
    say,
    split,
)
from dsmla_bench.cli.kernels import OUT_HELP

if TYPE_CHECKING:
    from dsmla_bench.evals.error_plan import ErrorPlan
    from dsmla_bench.results import Run


def error(
    formats: Annotated[
        str | None, typer.Option(help="Formats, e.g. bf16,fp8_ds_mla:amax448. Default: all, in every revision.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="normal (the default), student_t, outlier_channels, correlated_channels, token_scales, or a .npy, "
            ".pt or .safetensors file of latents [T, 576]."
        ),
    ] = None,
    sigma: Annotated[
        str | None, typer.Option(help="Sizes of the data. Default: 1e-4 to 100 in decades for normal, 1 for others.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens. Default: 4096, of a file all.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of data and queries.", min=0)] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    providers: Annotated[
        str | None, typer.Option(help="Providers, e.g. reference,triton. Default: both on cuda, else reference.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Scale of formats that keep it outside the cache: default, amax, percentile.")
    ] = "default",
    latent_scale: Annotated[
        str, typer.Option(help="Powers of two to multiply the latent by before, and divide it by after the cache.")
    ] = "1",
    only: Annotated[str | None, typer.Option(help="Quantize one part alone: nope or rope.")] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Also measure what sparse attention sees.")] = False,
    readers: Annotated[bool, typer.Option("--readers", help="Also read the same bytes as other readers do.")] = False,
    from_model: Annotated[
        Path | None,
        typer.Option(help="Latents captured from a model, layer by layer: the folder of a transformers checkpoint."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="What --from-model reads, in UTF-8. Default: prose of ours.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that comes with --from-model.")
    ] = False,
    out: Annotated[str, typer.Option(help=OUT_HELP)] = "runs",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure the error of cache formats against bf16: by part, magnitude and tile, in attention, by reader.

    Examples: dsmla-bench error; dsmla-bench error --data latents.pt --attention; dsmla-bench error --readers --sigma 1
    """
    import torch

    from dsmla_bench.evals.error_plan import ErrorPlan
    from dsmla_bench.kernels.formats import all_formats, get_format
    from dsmla_bench.kernels.providers import load_providers

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    default_providers = "reference,triton" if chosen == "cuda" else "reference"
    plan = ErrorPlan(
        formats=tuple(get_format(name).key for name in split(formats)) or tuple(fmt.key for fmt in all_formats()),
        data=sources_named(data, from_model),
        sigmas=numbers(sigma, "--sigma") if sigma else (),
        tokens=tokens,
        seed=seed,
        device=chosen,
        providers=choose(providers or default_providers, list(load_providers({})), "provider"),
        scales=tuple(split(scale)),
        latent_scales=numbers(latent_scale, "--latent-scale"),
        only=only,
        attention=attention,
        readers=readers,
        text=None if text is None else str(text),
        trust_remote_code=trust_remote_code,
    )
    require_device(chosen, torch.cuda.is_available())
    run = recorded(plan.create_run(out))
    interrupted = execute(plan, run)
    if run.has_table("errors"):
        print_error_run(run, as_json=as_json)
    if not as_json:
        print_text(f"run: {run.path}")
    if interrupted:
        say("interrupted; data that was finished is kept")
        raise typer.Exit(ExitCode.INTERRUPTED)


def sources_named(data: str | None, model: Path | None) -> tuple[str, ...]:
    """What is measured: the data named, then the model; normal latents where neither is. Raises ValueError."""
    if model is None:
        return tuple(split("normal" if data is None else data))
    if not model.is_dir():
        raise ValueError(f"{model}: is no folder; --from-model takes the folder of a transformers checkpoint")
    return (*split(data), str(model))


def require_device(device: str, has_cuda: bool) -> None:
    """Raise ValueError for a device that is none, and exit with ``NO_DEVICE`` for a CUDA device that is missing."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, found {device!r}")
    if device == "cuda" and not has_cuda:
        complain("no CUDA device here, and --device cuda asks for one")
        raise typer.Exit(ExitCode.NO_DEVICE)


def numbers(text: str, what: str) -> tuple[float, ...]:
    """``1e-3,1`` → its numbers, one at least. Raises ValueError for anything else."""
    wrong = f"{what} must be numbers with commas between, found {text!r}"
    try:
        found = tuple(dict.fromkeys(float(part) for part in split(text)))
    except ValueError as error:
        raise ValueError(wrong) from error
    if not found:
        raise ValueError(wrong)
    return found


def execute(plan: ErrorPlan, run: Run) -> bool:
    """Measure everything, saying on a terminal which data is done; whether Ctrl-C cut it short."""
    from dsmla_bench.evals import error

    try:
        for name in error.execute(plan, run):
            if sys.stderr.isatty():
                say(f"done: {name}")
    except KeyboardInterrupt:
        run.finish(interrupted=True)
        return True
    return False


def print_error_run(run: Run, *, as_json: bool) -> None:
    """A run as tables, fitted to the terminal or plain text where standard output is none, or as JSON."""
    if as_json:
        print_json(document(run))
        return
    from dsmla_bench.reports.error_report import tables_of

    print_tables(tables_of(run))


def document(run: Run) -> dict[str, Any]:
    """The run for machines: its path, manifest and tables, undefined as null."""
    from dsmla_bench.evals.error_rows import TABLES
    from dsmla_bench.reports.plain_data import records

    tables = {name: records(run.table(name)) for name in TABLES if run.has_table(name)}
    return {"run": str(run.path), "manifest": run.manifest, **tables}
