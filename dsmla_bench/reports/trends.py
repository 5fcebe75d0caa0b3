"""Has a series of figures changed, and since which one? Pure statistics over one figure per run, oldest first.

Two questions, each with a rule that stays quiet on a machine's noise:

``screen``        is the newest figure unlike those before it? Its modified z-score (Iglewicz and Hoaglin, How to Detect
                  and Handle Outliers, 1993: 0.6745 · (x - median) / MAD) is over 3.5 and its distance from the median
                  over max(3 %, quantum / median). One figure proves nothing, so this is a reason to measure again.
``change_points`` where did the level change? Candidates are the splits that maximise the energy statistic of E-divisive
                  (Matteson and James, A Nonparametric Approach for Multiple Change Point Analysis, 2014, alpha = 1):
                  m·n/(m+n) · (2·E|X-Y| - E|X-X'| - E|Y-Y'|). A candidate counts if it passes every guard: three
                  figures on either side, a change of the mean of at least max(3 %, 1.01 · quantum / mean), and
                  p < 0.5 % in Welch's t test, whose standard deviations are at least quantum / √12.

``exact_changes`` is for figures that a machine does not blur, as bytes or a seeded error: every change of more than
1e-6 of the figure counts, at once.

``quantum`` is what the clock resolves, in the unit of the figures. A step of less than one quantum is not seen, by
design. Figures must be finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from dsmla_bench.reports.metrics import EXACT_TOLERANCE
from dsmla_bench.reports.statistics import Floats

LEAST_CHANGE = 0.03
LEAST_SEGMENT = 3
LEAST_HISTORY = 5
"""Figures before the newest one that a screen needs: a spread of fewer says nothing."""
Z_SCORE = 3.5
P_VALUE = 0.005
WINDOW = 60
"""Figures in which one split is looked for; windows overlap by half, so that a long series costs linear time."""


@dataclass(frozen=True)
class ChangePoint:
    """From figure ``index`` on the level is ``after`` instead of ``before``, both means between change points."""

    index: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative to the level before: 0.05 is 5 % more. Infinite where that was zero."""
        return relative(self.before, self.after)


def relative(before: float, after: float) -> float:
    """``after`` / ``before`` - 1, with the sign of the difference; infinite from zero to anything else."""
    if after == before:
        return 0.0
    return (after - before) / abs(before) if before else float("inf") * np.sign(after)


def screen(figures: Floats, quantum: float = 0.0) -> ChangePoint | None:
    """The newest figure as a change from the median of those before it, if it is unlike them; else None."""
    if len(figures) <= LEAST_HISTORY:
        return None
    known, newest = figures[:-1], float(figures[-1])
    centre = float(np.median(known))
    spread = max(float(np.median(np.abs(known - centre))), quantum / 2)
    distance = abs(newest - centre)
    unusual = 0.6745 * distance > Z_SCORE * spread
    large = distance > max(LEAST_CHANGE * abs(centre), quantum)
    return ChangePoint(len(known), centre, newest) if unusual and large else None


def change_points(figures: Floats, quantum: float = 0.0) -> list[ChangePoint]:
    """Where the level changed, oldest first."""
    found = {index for start, end in _windows(len(figures)) for index in _splits(figures, start, end, quantum)}
    kept = _pruned(figures, sorted(found), quantum)
    if not kept:
        return []
    edges = [0, *kept, len(figures)]
    levels = [float(figures[start:end].mean()) for start, end in itertools.pairwise(edges)]
    return [ChangePoint(index, *pair) for index, pair in zip(kept, itertools.pairwise(levels), strict=True)]


def exact_changes(figures: Floats) -> list[ChangePoint]:
    """Every figure that differs from the one before it by more than 1e-6 of it."""
    before, after = figures[:-1], figures[1:]
    changed = np.flatnonzero(np.abs(after - before) > EXACT_TOLERANCE * np.abs(before))
    return [ChangePoint(int(index) + 1, float(before[index]), float(after[index])) for index in changed]


def _windows(count: int) -> Iterator[tuple[int, int]]:
    """Start and end of overlapping windows over ``count`` figures; the last one ends with the series."""
    for start in range(0, max(count - WINDOW, 0), WINDOW // 2):
        yield start, start + WINDOW
    yield max(count - WINDOW, 0), count


def _splits(figures: Floats, start: int, end: int, quantum: float) -> Iterator[int]:
    """The guarded splits of figures[start:end], found by splitting in two again and again."""
    if end - start < 2 * LEAST_SEGMENT:
        return
    split, stop = (start + number for number in _best_split(figures[start:end]))
    if passes_guards(figures[start:split], figures[split:stop], quantum):
        yield from _splits(figures, start, split, quantum)
        yield split
        yield from _splits(figures, split, end, quantum)


def _best_split(figures: Floats) -> tuple[int, int]:
    """Where the second part begins and ends at the largest energy statistic.

    That the second part may end before the figures do is what lets a level be found that did not last.
    """
    sums = np.zeros((len(figures) + 1, len(figures) + 1))
    sums[1:, 1:] = np.abs(figures[:, None] - figures).cumsum(axis=0).cumsum(axis=1)
    split, stop = np.triu_indices(len(figures) + 1, LEAST_SEGMENT)
    split, stop = split[split >= LEAST_SEGMENT], stop[split >= LEAST_SEGMENT]
    first, second = split, stop - split
    within_first = sums[split, split]
    across = sums[split, stop] - within_first
    within_second = sums[stop, stop] - within_first - 2 * across
    distance = 2 * across / (first * second) - within_first / first**2 - within_second / second**2
    best = np.argmax(first * second / stop * distance)
    return int(split[best]), int(stop[best])


def passes_guards(before: Floats, after: Floats, quantum: float = 0.0) -> bool:
    """Whether two stretches of figures differ by more than noise, as the module docstring says."""
    if min(len(before), len(after)) < LEAST_SEGMENT:
        return False
    level, change = float(before.mean()), float(after.mean() - before.mean())
    if abs(change) < max(LEAST_CHANGE * abs(level), 1.01 * quantum) or change == 0:
        return False
    return _welch_p(before, after, change, quantum) < P_VALUE


def _welch_p(before: Floats, after: Floats, change: float, quantum: float) -> float:
    """The two-sided p-value of Welch's t test with the guard's least standard deviation."""
    least = quantum**2 / 12
    errors = [max(float(part.var(ddof=1)), least) / len(part) for part in (before, after)]
    if sum(errors) == 0:
        return 0.0
    freedom = sum(errors) ** 2 / sum(e**2 / (len(p) - 1) for e, p in zip(errors, (before, after), strict=True))
    return 2 * float(stdtr(freedom, -abs(change) / np.sqrt(sum(errors))))


def _pruned(figures: Floats, splits: list[int], quantum: float) -> list[int]:
    """The splits that still pass between their final neighbours: windows may propose one step twice."""
    kept = list(splits)
    for split in splits:
        edges = [0, *kept, len(figures)]
        place = edges.index(split)
        if not passes_guards(figures[edges[place - 1] : split], figures[split : edges[place + 1]], quantum):
            kept.remove(split)
    return kept
