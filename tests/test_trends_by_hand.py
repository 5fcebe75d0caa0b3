"""Change points against scipy and by hand, to the digit: what planted faults got past."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dsmla_bench.reports.segments import MARKS, segments_of
from dsmla_bench.reports.trends import P_VALUE, _best_split, passes_guards


def test_the_guards_test_is_welchs():
    """400 pairs of few figures around the limit of 0.5 %, of which about half pass."""
    generator, passed = np.random.default_rng(0), []
    for _ in range(400):
        before = generator.normal(8.0, 0.1, generator.integers(3, 7))
        after = generator.normal(8.6, 0.3, generator.integers(3, 7))
        p = stats.ttest_ind(before, after, equal_var=False).pvalue
        large = abs(after.mean() - before.mean()) >= 0.03 * before.mean()
        passed.append(passes_guards(before, after))
        assert passed[-1] == (large and p < P_VALUE), p
    assert 100 < sum(passed) < 300


@pytest.mark.parametrize(("quantum", "passes"), [(0.0, True), (0.30, True), (0.45, False)])
def test_equal_figures_are_as_uncertain_as_the_clock(quantum, passes):
    """Three of 8, three of 8.5: for a quantum of 0.45 t is 0.5 / (0.13 · sqrt(2 / 3)) = 4.7 of 4 degrees, p 0.9 %."""
    assert passes_guards(np.full(3, 8.0), np.full(3, 8.5), quantum) == passes


def energy(first, second):
    """The statistic of E-divisive from its definition: means over all pairs, of a figure with itself too."""
    across = np.mean([abs(a - b) for a in first for b in second])
    within = sum(np.mean([abs(a - b) for a in part for b in part]) for part in (first, second))
    return len(first) * len(second) / (len(first) + len(second)) * (2 * across - within)


def test_the_best_split_has_the_largest_energy():
    generator = np.random.default_rng(1)
    for _ in range(60):
        figures = generator.normal(8.0, 0.2, 11) + np.where(np.arange(11) >= generator.integers(3, 9), 0.3, 0.0)
        places = [(split, stop) for split in range(3, 9) for stop in range(split + 3, 12)]
        expected = max(places, key=lambda place: energy(figures[: place[0]], figures[place[0] : place[1]]))
        assert _best_split(figures) == expected


@pytest.mark.parametrize("driver", [["a", "a", None, None], [None, None, "a", "a"], ["a", None, "b", "b"]])
def test_what_is_unknown_on_either_side_is_not_new(driver):
    same = {name: ["same"] * 4 for name in MARKS}
    assert segments_of(pd.DataFrame({**same, "driver": driver})) == []
    (segment,) = segments_of(pd.DataFrame({**same, "driver": ["a", "a", "b", "b"]}))
    assert (segment.start, segment.reasons, segment.compared) == (2, ("driver a → b",), False)


def test_a_figure_is_held_against_the_one_before_it_in_its_own_series():
    """Of two series that take turns the first gets a new driver, after the second had begun."""
    marks = {**{name: ["same"] * 4 for name in MARKS}, "series": ["s", "t", "s", "t"], "driver": ["a", "a", "c", "a"]}
    (segment,) = segments_of(pd.DataFrame(marks))
    assert (segment.start, segment.reasons) == (2, ("driver a → c",))
