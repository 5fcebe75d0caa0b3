"""Statistics of paired scores: intervals, tests, and how many documents a conclusion needs. Pure numbers.

Right or wrong answers are judged by the documents where two formats disagree: ``lost`` are right by the baseline alone,
``gained`` by the format alone. Everything else by the differences of its documents, added up in clusters that are
independent of each other (``Totals``). Deltas are format minus baseline.

Sources:
    tango_interval   T. Tango, Statistics in Medicine 17 (1998), 891-908: the score interval of a paired difference
    mcnemar_p        the exact binomial form of McNemar's test (Psychometrika 12, 1947)
    holm             S. Holm, Scandinavian Journal of Statistics 6 (1979), 65-70
    standard_error   of a ratio by its linearisation, clusters drawn with replacement (W. G. Cochran, Sampling
                     Techniques, 1977, sections 2.11 and 9A.1)
    bootstrap_t      B. Efron and R. Tibshirani, An Introduction to the Bootstrap (1993), section 12.5
    students_t       Student, The Probable Error of a Mean, Biometrika 6 (1908), 1-25
    sign_flip_p      R. A. Fisher's randomization test of paired differences (The Design of Experiments, 1935)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtr, stdtrit
from scipy.stats import norm

Values: TypeAlias = NDArray[np.float64]
RESAMPLES = 1999
FLIPS = 9999
ALPHA = 0.05
Z_ONE_SIDED = float(norm.ppf(1 - ALPHA))
Z_TWO_SIDED = float(norm.ppf(1 - ALPHA / 2))
Z_POWER = float(norm.ppf(0.8))
_AT_ONCE = 2**20
"""Values that are drawn at once: what bounds the memory of resampling."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval; a bound that the data does not settle is None."""

    lo: float | None
    hi: float | None


@dataclass(frozen=True)
class Totals:
    """Differences and weights added up by cluster, float64 [G] each, and how many documents they are of.

    delta = sum differences / sum weights
    """

    differences: Values
    weights: Values
    documents: int

    @property
    def delta(self) -> float:
        """The weighted mean difference."""
        return float(self.differences.sum() / self.weights.sum())

    @property
    def largest(self) -> float:
        """The largest difference that a cluster has for its weight, whatever its sign."""
        return float(np.abs(self.differences / self.weights).max())


def totals(differences: Values, weights: Values, clusters: Sequence[str | None]) -> Totals:
    """Documents' differences and weights, [n] each, by cluster; a document without a cluster is one of its own.

    Raises ValueError when there is no document, or a weight is not positive.
    """
    if not len(differences) or not bool((weights > 0).all()):
        raise ValueError("totals need at least one document, and positive weights")
    keys = [f"document {number}" if name is None else f"cluster {name}" for number, name in enumerate(clusters)]
    _, members = np.unique(keys, return_inverse=True)
    summed, weighed = (np.bincount(members, values).astype(np.float64) for values in (differences, weights))
    return Totals(summed, weighed, len(differences))


def tango_interval(lost: int, gained: int, documents: int, level: float = 0.95) -> Interval:
    """The interval of (gained - lost) / documents, which does not shrink to a point where no document differs."""
    if documents < 1:
        return Interval(None, None)
    delta, z = (gained - lost) / documents, float(norm.ppf((1 + level) / 2))

    def above(difference: float) -> float:
        return _tango_statistic(difference, lost, gained, documents) - z

    def below(difference: float) -> float:
        return _tango_statistic(difference, lost, gained, documents) + z

    edge = 1 - 1e-12
    lo = float(brentq(above, -edge, delta)) if above(-edge) > 0 > above(delta) else -1.0
    hi = float(brentq(below, delta, edge)) if below(delta) > 0 > below(edge) else 1.0
    return Interval(lo, hi)


def _tango_statistic(difference: float, lost: int, gained: int, documents: int) -> float:
    """How many standard errors the data is above ``difference``, at the likeliest share of losses given it."""
    surplus = gained - lost - documents * difference
    a = 2 * documents
    b = (2 * documents - gained + lost) * difference - lost - gained
    c = -lost * difference * (1 - difference)
    share_lost = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = documents * (2 * share_lost + difference * (1 - difference))
    if variance > 0:
        return surplus / math.sqrt(variance)
    return math.copysign(math.inf, surplus) if surplus else 0.0


def mcnemar_p(lost: int, gained: int) -> float:
    """Two-sided, of the hypothesis that losses and gains are equally likely; 1 where no document differs."""
    return min(1.0, 2 * float(bdtr(min(lost, gained), lost + gained, 0.5)))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for their number, in their order; None stays None and does not count."""
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[place] = largest
    return adjusted


def standard_error(found: Totals) -> float | None:
    """Of ``found.delta``, over clusters; None for a single one."""
    count = len(found.differences)
    if count < 2:
        return None
    residuals = found.differences - found.delta * found.weights
    return float(math.sqrt(count / (count - 1) * float((residuals**2).sum())) / found.weights.sum())


def bootstrap_t(found: Totals, levels: Sequence[float], seed: int) -> list[Interval]:
    """Intervals of ``found.delta`` at these levels from one set of resampled clusters.

    Where all clusters differ alike, that difference is both bounds. A bound is None where resamples without any spread
    reach so far into the tail that it is not settled, and both are None for a single cluster.
    """
    error = standard_error(found)
    if error is None:
        return [Interval(None, None) for _ in levels]
    if error == 0:
        return [Interval(found.delta, found.delta) for _ in levels]
    studentised = np.concatenate(list(_studentised(found, seed)))
    made = []
    for level in levels:
        tails = [(1 - level) / 2, (1 + level) / 2]
        low, high = np.quantile(studentised, tails, method="inverted_cdf")
        made.append(Interval(_finite(found.delta - high * error), _finite(found.delta - low * error)))
    return made


def _studentised(found: Totals, seed: int) -> Iterator[Values]:
    """(delta of a resample - delta) / standard error of the resample, RESAMPLES in all."""
    generator, count = np.random.default_rng(seed), len(found.differences)
    for rows in _portions(RESAMPLES, count):
        drawn = generator.integers(count, size=(rows, count))
        differences, weights = found.differences[drawn], found.weights[drawn]
        sums = weights.sum(1)
        deltas = differences.sum(1) / sums
        residuals = differences - deltas[:, None] * weights
        errors = np.sqrt(count / (count - 1) * (residuals**2).sum(1)) / sums
        with np.errstate(divide="ignore", invalid="ignore"):
            yield np.nan_to_num((deltas - found.delta) / errors, nan=0.0, posinf=math.inf, neginf=-math.inf)


def students_t(delta: float, error: float, clusters: int, level: float) -> Interval:
    """The interval of a delta of two clusters at least, from its standard error."""
    reach = float(stdtrit(clusters - 1, (1 + level) / 2)) * error
    return Interval(delta - reach, delta + reach)


def sign_flip_p(found: Totals, seed: int) -> float:
    """Two-sided, of the hypothesis that a cluster's difference has either sign with the same likelihood.

    Over all signs where there are no more than FLIPS + 1 ways to choose them, else over FLIPS random ones and the
    given one. (``scipy.stats.permutation_test`` does the same, thirty times slower.)
    """
    generator, count = np.random.default_rng(seed), len(found.differences)
    total = float(found.differences.sum())
    # What rounds differently in another order of addition still counts as being as far from 0.
    limit = abs(total) * (1 - 1e-9) - 1e-300
    if 2**count <= FLIPS + 1:
        negated = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        return float((np.abs(total - 2 * (negated @ found.differences)) >= limit).mean())
    extreme = 1
    for rows in _portions(FLIPS, count):
        negated = generator.integers(2, size=(rows, count), dtype=np.int8)
        extreme += int((np.abs(total - 2 * (negated @ found.differences)) >= limit).sum())
    return extreme / (FLIPS + 1)


def share_error(share: float, documents: int) -> float | None:
    """The standard error of a share of right answers, from the sample variance; None for a single document."""
    return math.sqrt(share * (1 - share) / (documents - 1)) if documents > 1 else None


def unpaired_p(delta: float, error: float) -> float:
    """Two-sided, of no difference between independent scores, by the normal distribution; ``error`` of the delta."""
    return float(2 * norm.sf(abs(delta) / error))


def detectable(error: float) -> float:
    """The smallest true difference that two-sided tests at ALPHA show with 80 % power; ``error`` of the delta."""
    return (Z_TWO_SIDED + Z_POWER) * error


def documents_needed(delta: float, error: float, documents: int, margin: float) -> int:
    """How many documents would settle an inconclusive row with 80 % power, given those there are.

    First as many as show a format without loss to be non-inferior. Where there are as many already, those that show
    what ``delta`` (a gain, negative for a loss) hints at: a loss, or one within the margin, whichever takes fewer.
    """
    variance = error**2 * documents
    within, worse = (Z_ONE_SIDED + Z_POWER) ** 2 * variance, (Z_TWO_SIDED + Z_POWER) ** 2 * variance
    wanted = within / margin**2
    if wanted <= documents:
        hints = [within / (margin + delta) ** 2] if delta > -margin else []
        hints += [worse / delta**2] if delta < 0 else []
        wanted = min(hints)
    return max(documents + 1, math.ceil(wanted))


def _portions(rows: int, width: int) -> Iterator[int]:
    """``rows`` in portions whose product with ``width`` is bounded."""
    step = max(1, _AT_ONCE // width)
    for start in range(0, rows, step):
        yield min(step, rows - start)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
