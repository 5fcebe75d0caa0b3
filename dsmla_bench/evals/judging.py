"""What a format costs by task scores: a baseline's and a format's ``TaskScores`` → ``JudgedRow``s. Pure.

Verdicts of paired scores, a loss being positive in the direction in which the metric gets worse:

    equivalent     the 90 % interval of the delta lies within the margin on both sides (two one-sided tests at 5 %)
    non-inferior   the loss is within the margin (one-sided at 5 %)
    worse          the 95 % interval holds losses only, and p is at most 5 % by Holm's rule over all rows of the format,
                   so that a format without loss is called worse in one comparison of 20 at most, however many tasks
    inconclusive   none of these; ``needed`` says how many documents would settle it

They are tried in this order, so a loss that is significant but within the margin is equivalent, with a note. Unpaired
scores are ``not significant`` unless p says otherwise: what they cannot show must not look like a result.

Margins are points of an accuracy, and percent of the baseline for what is no share of 1 (bits per byte, perplexity).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsmla_bench.evals.comparing import Comparison, by_margin, compare_aggregates, compare_pairs
from dsmla_bench.evals.paired_statistics import ALPHA, Interval, detectable, documents_needed, holm
from dsmla_bench.evals.pairing import NOTED, Pairs, differing, pair
from dsmla_bench.evals.scores import Aggregate, JudgedRow, Recipe, TaskScores

UNPAIRED = "unpaired: documents' scores are missing, so only a large difference can show"


@dataclass(frozen=True)
class Margins:
    """The loss that does not matter: points of accuracy (1.0 is 0.01), percent of other scores.

    Raises ValueError for one that is not between 0 and 100.
    """

    points: float = 1.0
    percent: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.points < 100 and 0 < self.percent < 100):
            raise ValueError(f"margins must lie between 0 and 100, found {self.points:g} and {self.percent:g}")

    def of(self, row: JudgedRow, baseline_score: float | None) -> float | None:
        """In the metric's unit; None where there is nothing to take a percentage of."""
        if row.bounded:
            return self.points / 100
        if row.aggregation == "exp_mean":
            return math.log1p(self.percent / 100)
        return abs(baseline_score) * self.percent / 100 if baseline_score else None


@dataclass(frozen=True)
class _Pending:
    """A row before its verdict, and the comparison that the verdict rests on; None where nothing was comparable."""

    row: JudgedRow
    comparison: Comparison | None = None


def judge(
    baseline: Sequence[TaskScores], other: Sequence[TaskScores], margins: Margins = Margins(), seed: int = 0
) -> list[JudgedRow]:
    """A row for every task, filter and metric of a format against the baseline's, in the baseline's order.

    ``other`` is of one format; p-values are adjusted over all its rows. Raises ValueError when a side is empty, or
    holds a task twice or several formats.
    """
    firsts, seconds = _by_task(baseline, "the baseline"), _by_task(other, "the format")
    lacking = [TaskScores(side[0].format, "", Recipe(), ()) for side in (baseline, other)]
    pending = [
        found
        for task in dict.fromkeys([*firsts, *seconds])
        for found in _compare_task(task, firsts.get(task, lacking[0]), seconds.get(task, lacking[1]), seed)
    ]
    adjusted = holm([found.comparison.effect.p if found.comparison else None for found in pending])
    return [
        _judged(found.row, found.comparison, margins, p_holm) if found.comparison else found.row
        for found, p_holm in zip(pending, adjusted, strict=True)
    ]


def verdict(wide: Interval, narrow: Interval, margin: float | None, p_holm: float | None) -> str:
    """The verdict of paired scores from the 95 % and the 90 % interval of the gain; see the module docstring."""
    if margin is not None and narrow.lo is not None and narrow.lo > -margin:
        return "equivalent" if narrow.hi is not None and narrow.hi < margin else "non-inferior"
    if wide.hi is not None and wide.hi < 0 and p_holm is not None and p_holm <= ALPHA:
        return "worse"
    return "inconclusive"


def _by_task(scores: Sequence[TaskScores], what: str) -> dict[str, TaskScores]:
    if not scores:
        raise ValueError(f"{what} has no scores to compare")
    formats = sorted({task.format for task in scores})
    if len(formats) > 1:
        raise ValueError(f"{what} must be one format, found {', '.join(formats)}")
    found = {task.task: task for task in scores}
    if len(found) < len(scores):
        raise ValueError(f"{what} has a task twice: {', '.join(task.task for task in scores)}")
    return found


def _compare_task(task: str, first: TaskScores, second: TaskScores, seed: int) -> Iterator[_Pending]:
    """The rows of one task; those that cannot be compared say why. A side that lacks it has no aggregates."""
    refused = differing(first.recipe, second.recipe)
    notes = (*differing(first.recipe, second.recipe, NOTED), *_notes_of(first), *_notes_of(second))
    pairs = pair(first.documents, second.documents)
    firsts, seconds = _by_metric(first), _by_metric(second)
    for key in dict.fromkeys([*firsts, *seconds]):
        baseline, other = firsts.get(key), seconds.get(key)
        found = pairs.get((task, *key), Pairs())
        why = refused or ([found.conflict] if found.conflict else [])
        if baseline is None or other is None:
            why = [f"only {second.format if baseline is None else first.format} has this task and metric"]
        row = _row(task, key, first.format, second.format, baseline, other)
        if baseline is None or other is None or why:
            yield _Pending(dataclasses.replace(row, notes=(*why, *notes)))
        elif found.baseline and baseline.aggregation != "other":
            left_out = [f"{found.left_out} documents without a counterpart left out"] if found.left_out else []
            row = dataclasses.replace(row, notes=(*left_out, *notes))
            yield _Pending(row, compare_pairs(baseline, found, seed))
        else:
            row = dataclasses.replace(row, notes=(UNPAIRED, *notes))
            yield _Pending(row, compare_aggregates(baseline, other))


def _by_metric(scores: TaskScores) -> dict[tuple[str, str], Aggregate]:
    return {(found.filter, found.metric): found for found in scores.aggregates}


def _notes_of(scores: TaskScores) -> list[str]:
    return [f"{scores.format}: {note}" for note in scores.notes]


def _row(
    task: str, key: tuple[str, str], baseline_name: str, name: str, baseline: Aggregate | None, other: Aggregate | None
) -> JudgedRow:
    """A row that says only what is to be compared."""
    known = baseline or other
    return JudgedRow(
        task=task,
        filter=key[0],
        metric=key[1],
        format=name,
        baseline=baseline_name,
        verdict="not comparable",
        paired=False,
        aggregation=known.aggregation if known else "other",
        higher_is_better=known.higher_is_better if known else None,
        bounded=bool(known and known.bounded),
        baseline_score=baseline.score if baseline else None,
        score=other.score if other else None,
    )


def _judged(row: JudgedRow, found: Comparison, margins: Margins, p_holm: float | None) -> JudgedRow:
    """The row with the figures of its comparison and its verdict."""
    margin = margins.of(row, found.baseline_score)
    found = by_margin(found, margin)
    effect = found.effect
    decided, needed = _decided(row, found, margin, p_holm)
    return dataclasses.replace(
        row,
        verdict=decided,
        paired=found.paired,
        documents=found.documents,
        clusters=found.clusters,
        baseline_score=found.baseline_score,
        score=found.score,
        delta=found.delta,
        delta_lo=effect.wide.lo,
        delta_hi=effect.wide.hi,
        method=effect.method,
        p=effect.p,
        p_holm=p_holm,
        margin=margin,
        needed=needed,
        resolution=detectable(effect.error) if effect.error else None,
        lost=found.lost,
        gained=found.gained,
        answers_changed=found.answers_changed,
        notes=(*_remarks(row, decided, effect.wide, p_holm), *row.notes),
    )


def _decided(row: JudgedRow, found: Comparison, margin: float | None, p_holm: float | None) -> tuple[str, int | None]:
    """The verdict, and of an inconclusive one how many documents would settle it."""
    if row.higher_is_better is None or found.delta is None:
        return "inconclusive", None
    sign, effect = 1 if row.higher_is_better else -1, found.effect
    decided = verdict(_gain(effect.wide, sign), _gain(effect.narrow, sign), margin, p_holm)
    if not found.paired and effect.p is not None and (effect.p > ALPHA or decided == "inconclusive"):
        return "not significant", None
    if decided != "inconclusive" or not (found.paired and found.documents and effect.error and margin):
        return decided, None
    return decided, documents_needed(sign * found.delta, effect.error, found.documents, margin)


def _remarks(row: JudgedRow, decided: str, wide: Interval, p_holm: float | None) -> list[str]:
    """What the verdict leaves unsaid."""
    if row.higher_is_better is None:
        return ["nobody says whether more of this metric is better"]
    loss = _gain(wide, 1 if row.higher_is_better else -1).hi
    if loss is None or loss >= 0 or p_holm is None:
        return []
    if decided == "equivalent" and p_holm <= ALPHA:
        return ["a significant loss, but within the margin"]
    if p_holm > ALPHA:
        return ["a loss by its own interval, but not significant among all rows of the format (Holm)"]
    return []


def _gain(interval: Interval, sign: int) -> Interval:
    """The interval of the delta in the direction in which the metric gets better."""
    lo, hi = interval.lo, interval.hi
    return interval if sign > 0 else Interval(None if hi is None else -hi, None if lo is None else -lo)
