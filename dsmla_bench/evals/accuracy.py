"""An accuracy run: variants × tasks, one cell after another, then the tables that judge them.

Tasks are loaded first, since what they lack must show before a model is. A cell is on disk before the next one begins,
and a run that is gone on with computes those that it lacks. The baseline comes first, so that a run cut short has what
the others are held against.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from dsmla_bench.error_text import first_line
from dsmla_bench.evals.accuracy_cells import Cells, cells_of
from dsmla_bench.evals.accuracy_plan import AccuracyPlan, computed_by
from dsmla_bench.evals.accuracy_results import Results
from dsmla_bench.evals.accuracy_rows import FidelityTableRow, VariantRow
from dsmla_bench.evals.backends import Backend, Variant
from dsmla_bench.evals.latents import LatentRow
from dsmla_bench.evals.lm_eval_scores import task_scores
from dsmla_bench.evals.lm_eval_tasks import run_task, task_sha256
from dsmla_bench.evals.scores import TaskScores
from dsmla_bench.results import Run

FIDELITY = "fidelity"
"""The name of the fidelity pass: of its step, and of its cell."""


@dataclass
class Session:
    """What is settled before a run begins: the tasks, who computes, and which variants can be computed.

    ``skipped``: why a variant cannot, by label.
    """

    plan: AccuracyPlan
    tasks: dict[str, Any]
    backend: Backend
    variants: list[Variant]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def computed(self) -> list[Variant]:
        """The variants that can be computed."""
        return [variant for variant in self.variants if variant.label not in self.skipped]

    @property
    def compared(self) -> list[Variant]:
        """The variants of the fidelity pass: all but the A/A."""
        return [variant for variant in self.computed if not variant.repeat]

    def steps(self) -> int:
        """How many names ``execute`` yields."""
        return len(self.computed) * len(self.tasks) + (1 if self.plan.windows else 0)


def prepare(plan: AccuracyPlan) -> Session:
    """Load the tasks, then look at everything that could fail later; no weights are read and nothing is written.

    Raises ValueError, in one sentence, for what cannot be computed.
    """
    tasks = plan.load_tasks()
    backend = plan.make_backend()
    session = Session(plan, tasks, backend, plan.variants())
    for variant in session.variants:
        if (reason := backend.why_not(variant)) is not None:
            session.skipped[variant.label] = reason
    if reason := session.skipped.get(plan.baseline):
        raise ValueError(f"{plan.baseline}, which all formats are held against, cannot be computed: {reason}")
    backend.check(session.computed)
    return session


def execute(session: Session, run: Run) -> Generator[str]:
    """Compute what ``run`` lacks and write its tables; yields the name of every step when it is done.

    Closed early, as on Ctrl-C, it writes the tables of what is finished. The run is left for the caller to finish.
    """
    cells, results = cells_of(run), _results(session)
    try:
        for variant in session.computed:
            yield from _score(session, cells, variant, results)
        if session.plan.windows:
            _measure_fidelity(session, cells, results)
            yield FIDELITY
    finally:
        results.write(run, session.plan.margins)


def _score(session: Session, cells: Cells, variant: Variant, results: Results) -> Iterator[str]:
    """Take a variant's scores of every task from its cells, or compute them."""
    keys = cell_keys(session, variant)
    found: dict[str, TaskScores] = {}
    try:
        for name, key in keys.items():
            stored = stored_scores(cells, (variant.label, name), key)
            if stored is not None:
                found[name] = stored
                yield f"{variant.label} {name}"
        if len(found) == len(keys):
            return
        with out_of_memory_in_words(), session.backend.open(variant) as lm:
            for name in [name for name in keys if name not in found]:
                found[name] = score_task(session, variant, lm, name)
                cells.save((variant.label, name), keys[name], dataclasses.asdict(found[name]))
                yield f"{variant.label} {name}"
    finally:
        results.scores[variant.label] = [found[name] for name in keys if name in found]


def stored_scores(cells: Cells, names: tuple[str, ...], key: dict[str, Any]) -> TaskScores | None:
    """The scores that a cell holds; None, with a warning, where it holds something else."""
    found = cells.load(names, key)
    try:
        return None if found is None else TaskScores.from_json(json.dumps(found))
    except ValueError as error:
        warnings.warn(f"{', '.join(names)}: {error}; computed again", stacklevel=2)
        return None


def score_task(session: Session, variant: Variant, lm: Any, name: str) -> TaskScores:
    """One task by one variant."""
    facts = session.backend.facts(variant)
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for results; lm-eval prints
        found = run_task(lm, name, session.tasks[name], session.plan.recipe)
    arguments = {"pretrained": session.plan.model, "tokenizer": facts.get("tokenizer_sha256")}
    about = {"model": session.backend.name, "model_args": arguments, "model_sha": facts.get("model_sha256")}
    found["config"] |= about
    (scores,) = task_scores(found, found["samples"], variant.label)
    return scores


def _measure_fidelity(session: Session, cells: Cells, results: Results) -> None:
    """Take the fidelity of all variants from its cell, or compute it, where the backend has it."""
    key = fidelity_key(session)
    found = cells.load((FIDELITY,), key)
    if found is None and (found := measured_fidelity(session)) is not None:
        cells.save((FIDELITY,), key, found)
    _add_fidelity(results, found)


def _add_fidelity(results: Results, found: Mapping[str, Any] | None) -> None:
    if found is not None:
        results.fidelity = [FidelityTableRow(**row) for row in found["fidelity"]]
        results.latents = [LatentRow(**row) for row in found["latents"]]


def fidelity_key(session: Session) -> dict[str, Any]:
    """Everything that decides the fidelity of the variants."""
    return {
        "facts": {variant.label: session.backend.facts(variant) for variant in session.compared},
        "tasks": {name: task_sha256(task) for name, task in session.tasks.items()},
        "windows": [session.plan.windows, session.plan.window_tokens],
        **computed_by(),
    }


def measured_fidelity(session: Session) -> dict[str, Any] | None:
    """The fidelity of the variants, as its cell holds it; None where the backend has none."""
    plan = session.plan
    with out_of_memory_in_words():
        measured = session.backend.fidelity(session.compared, session.tasks, plan.windows, plan.window_tokens)
    if measured is None:
        return None
    rows, latents = measured
    return {
        "fidelity": [dataclasses.asdict(row) for row in rows],
        "latents": [dataclasses.asdict(row) for row in latents],
    }


def collect(session: Session, run: Run) -> None:
    """Write the tables of what ``run`` holds; computes nothing."""
    cells, results = cells_of(run), _results(session)
    for variant in session.computed:
        found = [stored_scores(cells, (variant.label, name), key) for name, key in cell_keys(session, variant).items()]
        results.scores[variant.label] = [scores for scores in found if scores is not None]
    if session.plan.windows:
        _add_fidelity(results, cells.load((FIDELITY,), fidelity_key(session)))
    results.write(run, session.plan.margins)


def cell_keys(session: Session, variant: Variant) -> dict[str, dict[str, Any]]:
    """Task → everything that decides its scores by a variant."""
    key = {
        "backend": session.backend.name,
        **session.backend.facts(variant),
        "repeat": variant.repeat,
        **dataclasses.asdict(session.plan.recipe),
        **computed_by(),
    }
    return {name: {**key, "task_sha256": task_sha256(task)} for name, task in session.tasks.items()}


def _results(session: Session) -> Results:
    """The results of a session, without scores yet."""
    return Results(session.plan.baseline, [_variant_row(session, variant) for variant in session.variants])


def _variant_row(session: Session, variant: Variant) -> VariantRow:
    reason = session.skipped.get(variant.label)
    return VariantRow(
        format=variant.label,
        only=variant.only,
        is_baseline=variant.label == session.plan.baseline,
        is_probe=variant.is_probe,
        status="ok" if reason is None else "skipped",
        reason=reason,
        **_described(session.backend, variant),
    )


def _described(backend: Backend, variant: Variant) -> dict[str, Any]:
    """What is known of the format that a variant stores."""
    fmt, geometry = backend.cache_format(variant), backend.geometry
    if fmt is None:
        return {"cache_format": None, "revision": None, "bytes_per_token": None}
    size = fmt.row_bytes(geometry) if geometry is not None and fmt.geometry in (None, geometry) else None
    return {"cache_format": fmt.name, "revision": fmt.revision, "bytes_per_token": size}


@contextlib.contextmanager
def out_of_memory_in_words() -> Iterator[None]:
    """Memory that runs out becomes a ValueError that says what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"the device's memory does not hold the model and a batch ({first_line(error)}); use a smaller --batch-size"
        ) from error
