"""Two scores of one metric put side by side: their delta, its intervals, p-value and standard error. Pure, no verdict.

Paired documents that are right or wrong give Tango's interval and McNemar's p; those of other values, or in clusters,
a bootstrap over clusters and sign flips. Without pairs the aggregates are compared as if of different documents.

A bootstrap-t divides by the spread of its resamples. Where one document differs in its last bits and the others not at
all, many resamples have no spread, and a bound is not settled, however small that difference is. So NEGLIGIBLE
differences have Student's interval instead. Of differences of r at most it reaches no further than 6.4 r (at 90 %, two
clusters; less of more), which is within the margin. Bounded values keep the bootstrap: documents that agree here say
little of the next one, which may differ by 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dsmla_bench.evals import paired_statistics as statistics
from dsmla_bench.evals.paired_statistics import Interval, Totals
from dsmla_bench.evals.pairing import Pairs
from dsmla_bench.evals.scores import Aggregate

WIDE, NARROW = 0.95, 0.90
UNSETTLED = Interval(None, None)
NEGLIGIBLE = 0.1
"""The share of the margin that no cluster's difference exceeds."""


@dataclass(frozen=True)
class Effect:
    """A delta's uncertainty: its intervals at WIDE and NARROW, p of no difference, standard error, and by what method.

    Undefined is None.
    """

    wide: Interval = UNSETTLED
    narrow: Interval = UNSETTLED
    p: float | None = None
    error: float | None = None
    method: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A format's score against the baseline's; fields as in ``scores.JudgedRow``. Undefined is None.

    largest   the largest difference of a cluster, where values have no bounds
    """

    paired: bool
    baseline_score: float | None
    score: float | None
    delta: float | None
    effect: Effect
    documents: int | None = None
    clusters: int | None = None
    lost: int | None = None
    gained: int | None = None
    answers_changed: int | None = None
    largest: float | None = None


def compare_pairs(aggregate: Aggregate, pairs: Pairs, seed: int) -> Comparison:
    """The comparison of documents that both sides scored, one pair at least. ``seed`` of what is resampled."""
    before, after = (np.array([document.value for document in side], float) for side in (pairs.baseline, pairs.other))
    weights = np.array([document.weight for document in pairs.baseline], float)
    found = statistics.totals(after - before, weights, [document.cluster for document in pairs.baseline])
    right_or_wrong = aggregate.bounded and bool(np.isin([before, after], (0, 1)).all())
    lost, gained = int((after < before).sum()), int((after > before).sum())
    exact = right_or_wrong and len(found.differences) == found.documents and bool((weights == 1).all())
    scores = [_score(aggregate, float(values.sum() / weights.sum())) for values in (before, after)]
    return Comparison(
        paired=True,
        baseline_score=scores[0],
        score=scores[1],
        delta=found.delta,
        effect=_exact(lost, gained, found.documents) if exact else _resampled(found, aggregate, seed),
        documents=found.documents,
        clusters=len(found.differences),
        lost=lost if right_or_wrong else None,
        gained=gained if right_or_wrong else None,
        answers_changed=_answers_changed(pairs),
        largest=None if aggregate.bounded else found.largest,
    )


def by_margin(found: Comparison, margin: float | None) -> Comparison:
    """The comparison with Student's intervals, where its differences are negligible against this margin."""
    delta, error, clusters = found.delta, found.effect.error, found.clusters
    if margin is None or found.largest is None or found.largest > NEGLIGIBLE * margin:
        return found
    if delta is None or error is None or clusters is None:
        return found
    wide, narrow = (statistics.students_t(delta, error, clusters, level) for level in (WIDE, NARROW))
    return replace(found, effect=replace(found.effect, wide=wide, narrow=narrow, method="student-t"))


def compare_aggregates(baseline: Aggregate, other: Aggregate) -> Comparison:
    """The comparison of two scores without their documents, by the normal distribution."""
    delta, error = _delta(baseline, other), _unpaired_error(baseline, other)
    effect = Effect()
    if delta is not None and error is not None:
        wide, narrow = (
            Interval(delta - z * error, delta + z * error) for z in (statistics.Z_TWO_SIDED, statistics.Z_ONE_SIDED)
        )
        effect = Effect(wide, narrow, statistics.unpaired_p(delta, error), error, "normal")
    same = baseline.documents == other.documents
    return Comparison(False, baseline.score, other.score, delta, effect, documents=other.documents if same else None)


def _exact(lost: int, gained: int, documents: int) -> Effect:
    """Of answers right or wrong. The error is that under no difference, with one discordant document at least."""
    wide, narrow = (statistics.tango_interval(lost, gained, documents, level) for level in (WIDE, NARROW))
    error = math.sqrt(max(lost + gained, 1)) / documents
    return Effect(wide, narrow, statistics.mcnemar_p(lost, gained), error, "tango")


def _resampled(found: Totals, aggregate: Aggregate, seed: int) -> Effect:
    """Of all else. Shares that agree in every cluster may still differ in the next one, as Tango's interval allows."""
    if aggregate.bounded and not found.differences.any():
        return _exact(0, 0, len(found.differences))
    wide, narrow = statistics.bootstrap_t(found, (WIDE, NARROW), seed)
    p = statistics.sign_flip_p(found, seed)
    return Effect(wide, narrow, p, statistics.standard_error(found), "bootstrap-t")


def _answers_changed(pairs: Pairs) -> int | None:
    """How many answers changed, where answers are known at all."""
    known = [
        (first.answer, second.answer)
        for first, second in zip(pairs.baseline, pairs.other, strict=True)
        if first.answer is not None and second.answer is not None
    ]
    return sum(first != second for first, second in known) if known else None


def _score(aggregate: Aggregate, mean: float) -> float | None:
    """A score from the weighted mean of its documents; None where a perplexity is beyond all numbers."""
    if aggregate.aggregation != "exp_mean":
        return mean
    return math.exp(mean) if mean < math.log(1e300) else None


def _delta(baseline: Aggregate, other: Aggregate) -> float | None:
    if baseline.score is None or other.score is None:
        return None
    if baseline.aggregation != "exp_mean":
        return other.score - baseline.score
    return math.log(other.score / baseline.score) if min(baseline.score, other.score) > 0 else None


def _unpaired_error(baseline: Aggregate, other: Aggregate) -> float | None:
    """The standard error of the delta from those of both scores; None where these are unknown or both 0."""
    errors = [_relative(side, _error(side)) for side in (baseline, other)]
    if None in errors:
        return None
    return math.hypot(*(error for error in errors if error is not None)) or None


def _error(side: Aggregate) -> float | None:
    """The standard error of a score, that of a share by its number of documents where none is recorded."""
    if side.stderr is None and side.bounded and side.score is not None and side.documents is not None:
        return statistics.share_error(side.score, side.documents)
    return side.stderr


def _relative(side: Aggregate, error: float | None) -> float | None:
    """The standard error of what a delta is made of: of the logarithm, for a perplexity."""
    if side.aggregation != "exp_mean" or error is None:
        return error
    return error / side.score if side.score else None
