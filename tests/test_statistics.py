"""Rank statistics: exact distributions against counting, other code and tables; ties never narrow anything."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dsmla_bench.reports.statistics import adjusted_p_values, paired_shift, unpaired_shift

differences = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=14)


def test_the_estimate_is_the_median_of_walsh_averages_and_one_outlier_does_not_move_it():
    assert paired_shift([1.0, 2.0, 4.0]).estimate == 2.25  # of 1, 1.5, 2, 2.5, 3, 4
    assert paired_shift([0.03] * 11 + [50.0]).estimate == 0.03
    assert unpaired_shift([1.0, 2.0], [2.0, 4.0, 9.0]).estimate == 2.5  # of 0, 1, 2, 3, 7, 8


@pytest.mark.parametrize(
    ("pairs", "confidence", "left_out"),
    [(6, 0.95, 1), (8, 0.99, 1), (10, 0.95, 9), (12, 0.95, 14), (12, 0.99, 8), (12, 0.995, 6), (20, 0.99, 38)],
)
def test_intervals_leave_out_as_many_walsh_averages_as_tables_of_the_signed_rank_say(pairs, confidence, left_out):
    """The two-sided test rejects up to T, 7 for 12 pairs at 1 %: the interval leaves out T + 1 at each end."""
    shift = paired_shift(np.arange(pairs) ** 1.5)
    assert shift.interval(confidence) == (shift.candidates[left_out - 1], shift.candidates[-left_out])


@pytest.mark.parametrize(("pairs", "confidence"), [(5, 0.95), (7, 0.99), (8, 0.995)])
def test_too_few_pairs_have_no_interval(pairs, confidence):
    assert paired_shift(range(1, pairs + 1)).interval(confidence) == (-math.inf, math.inf)


def test_p_values_are_those_of_scipy_where_there_are_no_ties():
    generator = np.random.default_rng(0)
    for size in (5, 8, 12, 20):
        first, second = generator.normal(size=size), generator.normal(0.5, size=size + 2)
        assert paired_shift(first).p_value == pytest.approx(stats.wilcoxon(first, method="exact").pvalue)
        by_scipy = stats.mannwhitneyu(first, second, method="exact").pvalue
        assert unpaired_shift(first, second).p_value == pytest.approx(by_scipy)


def test_distributions_are_what_counting_every_outcome_gives():
    ranks = range(1, 8)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    expected = [np.mean([total <= k for total in sums]) for k in range(sum(ranks) + 1)]
    assert paired_shift(ranks).cumulative == pytest.approx(expected)
    wins = [
        sum(now > then for now in chosen for then in set(range(7)) - set(chosen))
        for chosen in itertools.combinations(range(7), 3)
    ]
    expected = [np.mean([won <= k for won in wins]) for k in range(4 * 3 + 1)]
    assert unpaired_shift(range(4), range(3)).cumulative == pytest.approx(expected)


@given(differences, st.sampled_from([0.9, 0.95, 0.99, 0.995]))
def test_interval_and_p_value_never_contradict_each_other_ties_and_zeros_included(values, confidence):
    shift = paired_shift(values)
    lo, hi = shift.interval(confidence)
    assert (lo > 0 or hi < 0) == (shift.p_value <= 1 - confidence + 1e-12)
    assert lo <= shift.estimate <= hi


@given(differences, differences)
def test_swapping_the_groups_mirrors_everything(first, second):
    there, back = unpaired_shift(first, second), unpaired_shift(second, first)
    assert there.estimate == pytest.approx(-back.estimate)
    assert there.p_value == pytest.approx(back.p_value)
    lo, hi = there.interval(0.95)
    assert back.interval(0.95) == (pytest.approx(-hi), pytest.approx(-lo))


def test_all_zeros_are_no_difference_at_all():
    shift = paired_shift([0.0] * 12)
    assert (shift.estimate, shift.interval(0.99), shift.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_no_observation_is_an_error_not_a_number():
    with pytest.raises(ValueError, match="no pair"):
        paired_shift([])
    with pytest.raises(ValueError, match="without observations"):
        unpaired_shift([1.0], [])


def test_false_discoveries_are_controlled_as_benjamini_and_hochberg_do():
    assert adjusted_p_values([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert adjusted_p_values([]) == []
