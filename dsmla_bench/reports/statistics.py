"""Rank statistics of a shift between two groups of process medians: pure arithmetic, exact, no randomness.

``paired_shift`` rests on the one-sample Hodges–Lehmann estimate with Wilcoxon's signed-rank distribution,
``unpaired_shift`` on the two-sample one with the rank-sum (Mann–Whitney) distribution; both null distributions are
counted, not approximated (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, 3rd edition, 3.1-3.3 and
4.1-4.3). Estimate, interval and p-value come from one ordered list of candidates for the shift, so they never
contradict each other: an interval of confidence 1 - a leaves out 0 exactly where p <= a. Ties and zeros, which a coarse
clock makes, count against a difference: they widen the interval and never narrow it.

``adjusted_p_values`` controls the false discovery rate (Benjamini and Hochberg, 1995).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shift:
    """How far a second group lies above a first.

    candidates  float64 [N], ascending: every value that a pair of observations proposes for the shift
    cumulative  float64 [N + 1]: the probability that at most k candidates lie below the true shift
    """

    candidates: Floats
    cumulative: Floats

    @property
    def estimate(self) -> float:
        """The median of the candidates (Hodges and Lehmann)."""
        return float(np.median(self.candidates))

    @property
    def p_value(self) -> float:
        """Two-sided, of no shift at all; candidates that are exactly 0 speak against one."""
        against = min(int((self.candidates <= 0).sum()), int((self.candidates >= 0).sum()))
        return min(1.0, 2 * float(self.cumulative[against]))

    def interval(self, confidence: float) -> tuple[float, float]:
        """The exact interval of at least this confidence; infinite where the groups are too small for it."""
        left_out = int(np.searchsorted(self.cumulative, (1 - confidence) / 2 * (1 + 1e-12), side="right"))
        if left_out == 0:
            return -math.inf, math.inf
        return float(self.candidates[left_out - 1]), float(self.candidates[-left_out])


def paired_shift(differences: Sequence[float] | Floats) -> Shift:
    """The shift of ``differences`` [R] (second less first of each pair), R >= 1. Raises ValueError for none."""
    values = np.asarray(differences, dtype=np.float64)
    if values.size == 0:
        raise ValueError("there is no pair to estimate a shift from")
    first, second = np.triu_indices(values.size)
    walsh_averages = np.sort((values[first] + values[second]) / 2)
    return Shift(walsh_averages, _signed_rank_distribution(values.size))


def unpaired_shift(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> Shift:
    """The shift of ``second`` [n] against ``first`` [m]. Raises ValueError when one is empty."""
    before, now = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if before.size == 0 or now.size == 0:
        raise ValueError("a group without observations has no shift")
    differences = np.sort(np.subtract.outer(now, before).ravel())
    return Shift(differences, _rank_sum_distribution(before.size, now.size))


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """The smallest false discovery rate at which each p-value of a family is a discovery (Benjamini–Hochberg)."""
    return [float(p) for p in false_discovery_control(p_values, method="bh")] if p_values else []


@functools.cache
def _signed_rank_distribution(pairs: int) -> Floats:
    """Cumulative probabilities of the sum of the ranks 1 … ``pairs`` with a fair coin deciding which count."""
    density = np.ones(1)
    for rank in range(1, pairs + 1):
        heads = np.concatenate([np.zeros(rank), density])
        density = (heads + np.concatenate([density, np.zeros(rank)])) / 2
    return np.cumsum(density)


@functools.cache
def _rank_sum_distribution(first: int, second: int) -> Floats:
    """Cumulative probabilities of how many of ``first`` × ``second`` comparisons one group wins, all orders equal.

    Mann and Whitney's recursion: the largest observation belongs to ``second`` with probability
    second / (first + second), and then wins against all of ``first``.
    """
    return np.cumsum(_rank_sum_density(first, second))


@functools.cache
def _rank_sum_density(first: int, second: int) -> Floats:
    if first == 0 or second == 0:
        return np.ones(1)
    density = np.zeros(first * second + 1)
    density[first:] += second * _rank_sum_density(first, second - 1)
    density[: (first - 1) * second + 1] += first * _rank_sum_density(first - 1, second)
    return density / (first + second)
