"""The tables of an accuracy run and how they are made from what was found.

    variants.parquet    one row per line of the results: its format, what it is a probe of, why it was skipped
    scores.parquet      variant × task × filter × metric: the score and its standard error
    documents.parquet   the same by document: what comparisons pair
    judged.parquet      what each variant costs against the baseline: ``scores.JudgedRow``
    fidelity.parquet    variant × bucket of positions: KL, top-1 agreement, Δlogprob
    latents.parquet     variant × layer: ``latents.LatentRow``

``format`` is what a line is called everywhere. Undefined is None. The last two are there where backend sim computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dsmla_bench.evals.paired_statistics import Interval, bootstrap_t, totals
from dsmla_bench.evals.scores import JudgedRow, TaskScores

if TYPE_CHECKING:
    from dsmla_bench.evals.fidelity import Fidelity

LEVEL = 0.95


@dataclass(frozen=True)
class VariantRow:
    """One line of the results. ``status`` is "ok", or "skipped" with a reason.

    cache_format, revision   what the cache stores; None where only its user knows
    only                     the part that alone is quantized
    bytes_per_token          of the format's row
    is_baseline, is_probe    what the others are held against; shown for understanding, judges no format
    """

    format: str
    cache_format: str | None
    revision: str | None
    only: str | None
    bytes_per_token: int | None
    is_baseline: bool
    is_probe: bool
    status: str = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class ScoreRow:
    """A task's score by one filter and metric; see ``scores.Aggregate``. ``notes``: sentences joined by a space."""

    format: str
    task: str
    filter: str
    metric: str
    score: float | None
    stderr: float | None
    documents: int | None
    aggregation: str
    higher_is_better: bool | None
    bounded: bool
    task_version: str | None
    num_fewshot: int | None
    notes: str | None


@dataclass(frozen=True)
class DocumentRow:
    """``scores.DocumentScore`` of one line of the results."""

    format: str
    task: str
    filter: str
    metric: str
    doc_id: int
    value: float | None
    weight: float
    doc_hash: str | None
    prompt_hash: str | None
    target_hash: str | None
    cluster: str | None
    answer: str | None


@dataclass(frozen=True)
class FidelityTableRow:
    """``fidelity.FidelityRow`` as tables name it, with 95 % intervals of the means over windows where bucket is "all".

    ``is_floor``: the model against itself at another batch size. ``delta_logprob``: mean, nats, negative is worse.
    """

    format: str
    bucket: str
    is_floor: bool
    bytes_per_token: int | None
    windows: int
    positions: int
    undefined: int
    kl_mean: float | None
    kl_lo: float | None
    kl_hi: float | None
    kl_median: float | None
    kl_p95: float | None
    kl_p99: float | None
    kl_max: float | None
    top1_agreement: float | None
    delta_logprob: float | None
    delta_logprob_lo: float | None
    delta_logprob_hi: float | None
    delta_logprob_abs: float | None


def score_rows(scores: TaskScores) -> list[ScoreRow]:
    """A task's scores of one format, as rows."""
    recipe, notes = scores.recipe, " ".join(scores.notes) or None
    return [
        ScoreRow(
            scores.format,
            scores.task,
            **dataclasses.asdict(aggregate),
            task_version=recipe.task_version,
            num_fewshot=recipe.num_fewshot,
            notes=notes,
        )
        for aggregate in scores.aggregates
    ]


def document_rows(scores: TaskScores) -> list[DocumentRow]:
    """A task's documents of one format, as rows."""
    return [DocumentRow(scores.format, **dataclasses.asdict(document)) for document in scores.documents]


def judged_frame(rows: Sequence[JudgedRow]) -> pd.DataFrame:
    """``JudgedRow`` as a frame with one dtype per column; ``notes`` are lists of sentences."""
    plain = [dataclasses.asdict(row) for row in rows]
    columns = [field.name for field in dataclasses.fields(JudgedRow)]
    frame = pd.DataFrame(plain, columns=columns).convert_dtypes()
    return frame.assign(notes=pd.Series([list(row.notes) for row in rows], dtype=object, index=frame.index))


def fidelity_rows(found: Fidelity, floor: str, floor_label: str) -> list[FidelityTableRow]:
    """What ``fidelity.fidelity`` found, as rows. Its variant ``floor`` is called ``floor_label`` here."""
    made = []
    for row in found.rows:
        windows = [window for window in found.windows if window.variant == row.variant]
        whole = row.bucket == "all"
        kl = _interval(window.kl_mean for window in windows) if whole else Interval(None, None)
        change = _interval(window.dlogprob_mean for window in windows) if whole else Interval(None, None)
        made.append(
            FidelityTableRow(
                format=floor_label if row.variant == floor else row.variant,
                bucket=row.bucket,
                is_floor=row.variant == floor,
                bytes_per_token=row.bytes_per_token,
                windows=len(windows),
                positions=row.positions,
                undefined=row.undefined,
                kl_mean=row.kl_mean,
                kl_lo=kl.lo,
                kl_hi=kl.hi,
                kl_median=row.kl_median,
                kl_p95=row.kl_p95,
                kl_p99=row.kl_p99,
                kl_max=row.kl_max,
                top1_agreement=row.top1_agreement,
                delta_logprob=row.dlogprob_mean,
                delta_logprob_lo=change.lo,
                delta_logprob_hi=change.hi,
                delta_logprob_abs=row.dlogprob_mean_abs,
            )
        )
    return made


def _interval(means: Iterable[float | None]) -> Interval:
    """The 95 % bootstrap-t interval of the mean of windows' means, which weigh alike."""
    values = np.array([mean for mean in means if mean is not None], dtype=np.float64)
    if len(values) < 2:
        return Interval(None, None)
    return bootstrap_t(totals(values, np.ones(len(values)), [None] * len(values)), [LEVEL], seed=0)[0]
