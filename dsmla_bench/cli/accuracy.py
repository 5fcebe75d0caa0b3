"""``dsmla-bench accuracy``: what a format costs in task scores, and ``accuracy reference``: what others published."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.cluster import Ray, ray_aside
from dsmla_bench.cli.common import (
    ExitCode,
    choose,
    print_json,
    print_tables,
    print_text,
    recorded,
    say,
    split,
)
from dsmla_bench.cli.kernels import OUT_HELP
from dsmla_bench.cli.progress import counted

if TYPE_CHECKING:
    import pandas as pd

    from dsmla_bench.bench.cluster import Cluster
    from dsmla_bench.evals.accuracy import Session
    from dsmla_bench.evals.accuracy_plan import AccuracyPlan
    from dsmla_bench.results import Run

DEFAULT_FORMATS = "bf16,fp8,fp8_ds_mla,nvfp4_ds_mla"
DEFAULT_ABLATE = "nvfp4_ds_mla"
SHOWN_TABLES = ("variants", "scores", "fidelity", "latents")
"""What ``--json`` prints beside the judged rows; documents.parquet in the run has the rest."""

app = typer.Typer(invoke_without_command=True)


@app.callback()
def accuracy(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="embedded, the folder of a checkpoint, or with --online a repository of the hub.")
    ] = "embedded",
    tokenizer: Annotated[str | None, typer.Option(help="Folder of a tokenizer. Default: the model's.")] = None,
    backend: Annotated[str, typer.Option(help="Who computes: sim, vllm or server.")] = "sim",
    formats: Annotated[
        str | None, typer.Option(help=f"Cache formats; bf16 is always among them. Default: {DEFAULT_FORMATS}.")
    ] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="FORMAT=URL of a running server, once for each; implies --backend server.")
    ] = None,
    from_: Annotated[
        list[str] | None,
        typer.Option("--from", help="FORMAT=PATH of lm-eval's own results, once for each; runs nothing."),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="embedded, names of lm-eval's tasks and groups, or folders of task YAML.")
    ] = "embedded",
    limit: Annotated[
        float | None, typer.Option(help="Documents of each task, below 1 their share. Default: all.")
    ] = None,
    num_fewshot: Annotated[int | None, typer.Option(help="Examples in the prompt. Default: what a task says.")] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help="Put prompts into the tokenizer's chat template.")
    ] = False,
    system_instruction: Annotated[str | None, typer.Option(help="Said before every prompt.")] = None,
    batch_size: Annotated[str, typer.Option(help="Sequences at once, or auto.")] = "8",
    max_length: Annotated[
        int | None, typer.Option(help="Longest context in tokens. Default: the model's.", min=2)
    ] = None,
    prefill: Annotated[
        str,
        typer.Option(help="What a prefill reads of its own tokens (sim): cache, or fresh as dense MLA backends do."),
    ] = "cache",
    ablate: Annotated[
        str | None,
        typer.Option(help="Formats to quantize part by part too (sim). Default: nvfp4_ds_mla. none for none."),
    ] = None,
    repeat: Annotated[bool, typer.Option(help="Compute bf16 twice, in batches of different size (A/A).")] = True,
    windows: Annotated[int, typer.Option(help="Windows of text of the fidelity pass (sim), 0 for none.", min=0)] = 16,
    window_tokens: Annotated[int, typer.Option(help="Tokens of each window.", min=2)] = 512,
    margin: Annotated[float, typer.Option(help="The loss that does not matter, in points of accuracy.")] = 1.0,
    fail_on: Annotated[
        str,
        typer.Option(help="Verdicts of a format that make the exit code 1, e.g. worse,inconclusive; none for none."),
    ] = "worse",
    device: Annotated[str | None, typer.Option(help="cpu or cuda (sim). Default: cuda where there is one.")] = None,
    num_concurrent: Annotated[int, typer.Option(help="Requests to a server at once.", min=1)] = 8,
    model_args: Annotated[
        str, typer.Option(help="Further arguments of vLLM's engine, e.g. tensor_parallel_size=8,enforce_eager=True.")
    ] = "",
    ray: Ray = None,
    online: Annotated[bool, typer.Option("--online", help="Let models and data be downloaded.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    out: Annotated[str, typer.Option(help=OUT_HELP)] = "runs",
    resume: Annotated[
        str | None, typer.Option(help="Go on with this run: what is finished and would come out the same is kept.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Score a model with its KV cache in each format, and say which differences from bf16 are more than noise.

    Examples: dsmla-bench accuracy; dsmla-bench accuracy --model ./checkpoint --tasks gsm8k --limit 200;
    dsmla-bench accuracy --from bf16=results/a --from nvfp4_ds_mla=results/b;
    dsmla-bench accuracy --server bf16=http://a --server fp8=http://b --model ./m
    """
    if context.invoked_subcommand is not None:
        return
    from dsmla_bench.evals.accuracy_environment import require_extra, set_environment
    from dsmla_bench.evals.judging import Margins

    margins, wanted = Margins(points=margin), verdicts(fail_on)
    if from_:
        run = recorded(imported(named(from_, "--from"), out, margins))
        raise typer.Exit(show(run, wanted, as_json=as_json))
    require_extra()
    set_environment(online=online)
    from lm_eval.utils import simple_parse_args_string

    from dsmla_bench.evals.accuracy_plan import AccuracyPlan
    from dsmla_bench.evals.lm_eval_tasks import TaskRecipe

    servers = named(server or [], "--server")
    if servers and formats:
        raise ValueError("--server names the formats already; leave --formats out")
    chosen = split(formats or DEFAULT_FORMATS)
    plan = AccuracyPlan(
        model=model,
        tokenizer=tokenizer,
        backend="server" if servers else backend,
        formats=tuple(chosen),
        servers=servers,
        tasks=tuple(split(tasks)),
        recipe=TaskRecipe(num_fewshot, limit, apply_chat_template, system_instruction),
        ablate=ablated(ablate, chosen, simulated=backend == "sim" and not servers),
        repeat=repeat,
        batch_size=int(batch_size) if batch_size.isdigit() else batch_size,
        max_length=max_length,
        prefill=prefill,
        device=chosen_device(device) if ray is None else device or "cuda",
        concurrent=num_concurrent,
        engine=simple_parse_args_string(model_args),
        windows=windows,
        window_tokens=window_tokens,
        margins=margins,
        online=online,
        trust_remote_code=trust_remote_code,
    )
    raise typer.Exit(run_and_show(plan, out, resume, wanted, ray=ray, as_json=as_json))


def run_and_show(
    plan: AccuracyPlan, out: str, resume: str | None, fail_on: tuple[str, ...], *, as_json: bool, ray: str | None = None
) -> ExitCode:
    """Compute a plan into a run, here or on the cluster at ``ray``, and print it."""
    from dsmla_bench.evals.accuracy import prepare

    session = prepare(plan)
    with cluster_of(plan, ray) as cluster:
        devices = [] if cluster is None else [seat.facts for seat in cluster.seats]
        run = plan.resume_run(resume, devices) if resume else recorded(plan.create_run(out, devices))
        interrupted = execute(session, run, cluster)
    code = show(run, fail_on, as_json=as_json)
    if interrupted:
        say(f"interrupted; finished scores are kept, go on with --resume {run.path}")
        return ExitCode.INTERRUPTED
    return code


@contextlib.contextmanager
def cluster_of(plan: AccuracyPlan, address: str | None) -> Iterator[Cluster | None]:
    """The cluster at this address, with a model of the plan on each of its GPUs; None without an address.

    While there is one, what is printed goes to standard error (``ray_aside``).
    """
    if address is None:
        yield None
        return
    from dsmla_bench.evals.accuracy_cluster import open_cluster

    with ray_aside(), contextlib.closing(open_cluster(plan, address)) as cluster:
        yield cluster


def execute(session: Session, run: Run, cluster: Cluster | None) -> bool:
    """Compute everything the run lacks, telling how far it is, and finish it; whether Ctrl-C cut it short."""
    from dsmla_bench.evals import accuracy, accuracy_cluster

    steps = accuracy.execute(session, run) if cluster is None else accuracy_cluster.execute(session, run, cluster)
    interrupted = False
    try:
        with contextlib.closing(steps) as names:
            for _ in counted(names, session.steps()):
                pass
    except KeyboardInterrupt:
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is computed is written down in any case
    except ValueError as error:
        raise ValueError(f"{error}; finished scores are kept, go on with --resume {run.path}") from error
    run.finish(interrupted=interrupted)
    return interrupted


def imported(paths: dict[str, str], out: str, margins: Any) -> Run:
    """A new run of lm-eval's own results, by format. Raises ValueError for fewer than two, or what cannot be read."""
    from dsmla_bench.evals.accuracy_import import import_results

    return import_results({name: Path(path) for name, path in paths.items()}, out, margins)


def show(run: Run, fail_on: tuple[str, ...], *, as_json: bool) -> ExitCode:
    """Print an accuracy run; the exit code that its verdicts ask for."""
    if as_json:
        print_json(document(run))
    else:
        print_accuracy_run(run)
        print_text(f"run: {run.path}")
    return ExitCode.FINE if findings(run, fail_on).empty else ExitCode.FINDINGS


def print_accuracy_run(run: Run) -> None:
    """A run as tables, fitted to the terminal."""
    from dsmla_bench.reports.accuracy_report import tables_of

    print_tables(tables_of(run))


def document(run: Run) -> dict[str, Any]:
    """The run for machines: its path, manifest and tables, undefined as null."""
    from dsmla_bench.reports.accuracy_report import judged_of
    from dsmla_bench.reports.plain_data import records

    tables = {name: records(run.table(name)) for name in SHOWN_TABLES if run.has_table(name)}
    return {"run": str(run.path), "manifest": run.manifest, **tables, "judged": records(judged_of(run))}


def findings(run: Run, fail_on: tuple[str, ...]) -> pd.DataFrame:
    """The judged rows of formats, probes left out, whose verdict is one of ``fail_on``."""
    judged, variants = run.table("judged"), run.table("variants")
    formats = variants.loc[~variants["is_probe"], "format"]
    return judged[judged["format"].isin(formats) & judged["verdict"].isin(fail_on)]


def verdicts(text: str) -> tuple[str, ...]:
    """The verdicts of ``--fail-on``. Raises ValueError for an unknown one."""
    from dsmla_bench.evals.scores import VERDICTS

    return () if text == "none" else choose(text, list(VERDICTS), "verdict")


def named(texts: list[str], option: str) -> dict[str, str]:
    """``["bf16=http://…"]`` → name → value. Raises ValueError for anything else, or a name twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{option} takes FORMAT=VALUE, found {text!r}")
        if name in found:
            raise ValueError(f"{option} names {name} twice; give every format one")
        found[name] = value
    return found


def ablated(text: str | None, formats: list[str], *, simulated: bool) -> tuple[str, ...]:
    """The formats to ablate: those named, else the default one where it is simulated; "none" for none."""
    if text is None:
        return tuple(name for name in split(DEFAULT_ABLATE) if simulated and name in formats)
    if text == "none":
        return ()
    if missing := [name for name in split(text) if name not in formats]:
        raise ValueError(f"--ablate names {', '.join(missing)}, which --formats does not")
    return tuple(split(text))


def chosen_device(name: str | None) -> str:
    """The device to compute on. Raises ValueError for none, and exits with NO_DEVICE where CUDA is missing."""
    import torch

    from dsmla_bench.cli.error import require_device

    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    require_device(chosen, torch.cuda.is_available())
    return chosen


@app.command()
def reference(
    run: Annotated[
        str | None, typer.Argument(help="An accuracy run to show beside what was published. Default: none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Print published scores of cache formats, with the smallest difference that each of them could have shown.

    Examples: dsmla-bench accuracy reference; dsmla-bench accuracy reference runs/A
    """
    import dataclasses

    import pandas as pd

    from dsmla_bench.evals import published
    from dsmla_bench.reports.accuracy_report import judged_of
    from dsmla_bench.reports.accuracy_tables import reference_tables
    from dsmla_bench.reports.plain_data import records
    from dsmla_bench.results import Run

    frame = pd.DataFrame([dataclasses.asdict(row) for row in published.rows()])
    judged = judged_of(Run.load(run)) if run else None
    if as_json:
        shown = {} if judged is None else {"judged": records(judged)}
        print_json({"published": records(frame), **shown})
    else:
        print_tables(reference_tables(frame, judged))
