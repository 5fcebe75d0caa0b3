"""Statistics of paired scores against brute force and values by hand, and their error rates where nothing differs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dsmla_bench.evals import paired_statistics as statistics
from dsmla_bench.evals.judging import verdict
from dsmla_bench.evals.paired_statistics import Interval, Totals


def tango_by_brute_force(difference, lost, gained, documents):
    """Tango's statistic from its definition: the likeliest losses given the difference, found by search."""

    def log_likelihood(share_lost):
        cells = (share_lost, share_lost + difference, 1 - 2 * share_lost - difference)
        counts = (lost, gained, documents - lost - gained)
        return sum(count * math.log(max(cell, 1e-300)) for cell, count in zip(cells, counts, strict=True) if count)

    low, high = max(0.0, -difference), (1 - difference) / 2
    share_lost = minimize_scalar(
        lambda share: -log_likelihood(share), bounds=(low, high), method="bounded", options={"xatol": 1e-12}
    ).x
    variance = 2 * share_lost + difference - difference**2
    return (gained - lost - documents * difference) / math.sqrt(documents * variance)


@pytest.mark.parametrize(
    ("lost", "gained", "documents"), [(14, 3, 200), (3, 14, 200), (0, 0, 400), (1, 0, 10), (5, 5, 30), (40, 2, 100)]
)
def test_both_bounds_of_tango_are_where_the_brute_force_statistic_is_z(lost, gained, documents):
    interval = statistics.tango_interval(lost, gained, documents)
    assert tango_by_brute_force(interval.lo, lost, gained, documents) == pytest.approx(1.959964, abs=2e-3)
    assert tango_by_brute_force(interval.hi, lost, gained, documents) == pytest.approx(-1.959964, abs=2e-3)


def test_tango_does_not_shrink_to_a_point_where_no_document_differs():
    for documents, half_width in ((400, 0.0095), (1319, 0.0029)):
        interval = statistics.tango_interval(0, 0, documents)
        assert (interval.lo, interval.hi) == pytest.approx((-half_width, half_width), rel=0.01)


def test_tango_at_the_edges():
    assert statistics.tango_interval(10, 0, 10).lo == pytest.approx(-1)
    assert statistics.tango_interval(0, 10, 10).hi == pytest.approx(1)
    assert statistics.tango_interval(0, 0, 0) == Interval(None, None)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 200))
def test_tango_holds_the_delta_and_turns_with_the_sides(lost, gained, same):
    documents = lost + gained + same
    interval = statistics.tango_interval(lost, gained, documents)
    if documents:
        turned = statistics.tango_interval(gained, lost, documents)
        assert interval.lo <= (gained - lost) / documents <= interval.hi
        assert (turned.lo, turned.hi) == pytest.approx((-interval.hi, -interval.lo), abs=1e-9)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(14, 3, 2 * 834 / 2**17), (0, 5, 2 / 2**5), (1, 1, 1.0), (0, 0, 1.0), (4, 0, 0.125), (6, 1, 2 * 8 / 2**7)],
)
def test_mcnemar_by_hand(lost, gained, p):
    assert statistics.mcnemar_p(lost, gained) == pytest.approx(p, rel=1e-12)


def test_holm_by_hand():
    assert statistics.holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert statistics.holm([0.6, 0.7]) == [1.0, 1.0]
    assert statistics.holm([None]) == [None]


def test_the_standard_error_of_clusters_is_that_of_their_sums():
    """Two documents of one cluster that agree are one observation: the formula of cluster sampling by hand."""
    differences = np.array([1.0, 1.0, 0.0, 0.0, -1.0, -1.0])
    found = statistics.totals(differences, np.ones(6), ["a", "a", "b", "b", "c", "c"])
    assert (found.delta, len(found.differences), found.documents) == (0.0, 3, 6)
    assert statistics.standard_error(found) == pytest.approx(math.sqrt(3 / 2 * (2**2 + 0 + 2**2)) / 6)
    alone = statistics.totals(differences, np.ones(6), [None] * 6)
    assert statistics.standard_error(alone) == pytest.approx(float(np.std(differences, ddof=1)) / math.sqrt(6))
    assert statistics.standard_error(statistics.totals(differences, np.ones(6), ["a"] * 6)) is None


def test_totals_refuse_nothing_and_weights_that_are_none():
    with pytest.raises(ValueError, match="at least one document"):
        statistics.totals(np.array([]), np.array([]), [])
    with pytest.raises(ValueError, match="positive weights"):
        statistics.totals(np.ones(2), np.array([1.0, 0.0]), [None, None])


def drawn(documents, seed, shift=0.0, scale=1.0):
    generator = np.random.default_rng(seed)
    weights = generator.uniform(50, 150, documents)
    return Totals(weights * (shift + scale * generator.normal(size=documents)), weights, documents)


def test_the_bootstrap_scales_and_moves_with_the_differences():
    found = drawn(60, seed=1)
    scaled = Totals(3 * found.differences + 2 * found.weights, found.weights, 60)
    (first,), (second,) = (statistics.bootstrap_t(each, [0.95], seed=5) for each in (found, scaled))
    assert (second.lo, second.hi) == pytest.approx((3 * first.lo + 2, 3 * first.hi + 2))
    assert statistics.bootstrap_t(found, [0.95], seed=5) == [first]


def test_a_bootstrap_interval_of_a_higher_level_holds_that_of_a_lower_one():
    wide, narrow = statistics.bootstrap_t(drawn(40, seed=2), [0.95, 0.9], seed=0)
    assert wide.lo <= narrow.lo <= narrow.hi <= wide.hi


def test_the_bootstrap_of_normal_differences_is_close_to_students_t():
    generator = np.random.default_rng(3)
    found = Totals(generator.normal(size=400), np.ones(400), 400)
    (interval,) = statistics.bootstrap_t(found, [0.95], seed=0)
    error = statistics.standard_error(found)
    assert interval.lo == pytest.approx(found.delta - 1.966 * error, abs=0.15 * error)
    assert interval.hi == pytest.approx(found.delta + 1.966 * error, abs=0.15 * error)


def test_the_bootstrap_of_a_skewed_mean_reaches_further_to_the_heavy_side():
    found = Totals(np.random.default_rng(4).exponential(size=80), np.ones(80), 80)
    (interval,) = statistics.bootstrap_t(found, [0.95], seed=0)
    assert interval.hi - found.delta > 1.1 * (found.delta - interval.lo)


def test_what_the_bootstrap_cannot_settle_is_none():
    """One document of 30 differs: most resamples have no spread at all, or nearly none."""
    differences = np.zeros(30)
    differences[0] = 1.0
    (sparse,) = statistics.bootstrap_t(Totals(differences, np.ones(30), 30), [0.95], seed=0)
    assert sparse.hi is None
    (single,) = statistics.bootstrap_t(Totals(np.ones(1), np.ones(1), 1), [0.95], seed=0)
    assert single == Interval(None, None)
    (alike,) = statistics.bootstrap_t(Totals(np.full(9, 0.5), np.ones(9), 9), [0.95], seed=0)
    assert alike == Interval(0.5, 0.5)


def test_sign_flips_by_hand():
    """Of 8 ways to choose the signs of 1, 2, 3, two are as far from 0 as the sum 6, and four as far as 4."""
    assert statistics.sign_flip_p(Totals(np.array([1.0, 2.0, 3.0]), np.ones(3), 3), seed=0) == 2 / 8
    assert statistics.sign_flip_p(Totals(np.array([-1.0, 2.0, 3.0]), np.ones(3), 3), seed=0) == 4 / 8
    assert statistics.sign_flip_p(Totals(np.zeros(3), np.ones(3), 3), seed=0) == 1.0


def test_random_sign_flips_agree_with_all_of_them_and_are_never_zero():
    found = drawn(13, seed=8, shift=0.4)
    everything = statistics.sign_flip_p(found, seed=0)
    doubled = Totals(np.concatenate([found.differences, np.zeros(9)]), np.ones(22), 22)
    assert statistics.sign_flip_p(doubled, seed=0) == pytest.approx(everything, abs=0.02)
    assert statistics.sign_flip_p(Totals(np.ones(40), np.ones(40), 40), seed=0) == 1 / (statistics.FLIPS + 1)


def test_flipping_every_sign_changes_no_p():
    found = drawn(30, seed=9, shift=0.2)
    turned = Totals(-found.differences, found.weights, 30)
    assert statistics.sign_flip_p(found, seed=0) == pytest.approx(statistics.sign_flip_p(turned, seed=0))


@pytest.mark.parametrize(
    ("share", "documents", "points"), [(0.01, 198, 2.0), (0.03, 1319, 1.34), (0.1, 12032, 0.81), (0.1, 30, 16.2)]
)
def test_the_detectable_difference_of_known_benchmarks(share, documents, points):
    assert 100 * statistics.detectable(math.sqrt(share / documents)) == pytest.approx(points, rel=0.01)


@pytest.mark.parametrize(("share", "documents"), [(0.01, 619), (0.03, 1855), (0.1, 6184)])
def test_the_documents_that_show_non_inferiority_within_a_point(share, documents):
    needed = statistics.documents_needed(0.0, math.sqrt(share / 100), 100, 0.01)
    assert needed == pytest.approx(documents, rel=1e-3)


def simulated(share_lost, share_gained, documents, tasks, seed):
    """Lost and gained documents of tasks, [tasks, 2]."""
    probabilities = (share_lost, share_gained, 1 - share_lost - share_gained)
    return np.random.default_rng(seed).multinomial(documents, probabilities, size=tasks)[:, :2]


def verdict_of(lost, gained, documents, margin, p_holm):
    wide, narrow = (statistics.tango_interval(lost, gained, documents, level) for level in (0.95, 0.9))
    return verdict(wide, narrow, margin, p_holm)


@pytest.mark.parametrize(("share", "documents"), [(0.03, 300), (0.1, 1000)])
def test_a_format_without_loss_is_called_worse_in_one_run_of_20_at_most(share, documents):
    """2000 runs of the baseline against itself, five tasks each; a run is a false alarm if any task is."""
    alarms = 0
    for counts in simulated(share / 2, share / 2, documents, 10_000, seed=0).reshape(2000, 5, 2).tolist():
        adjusted = statistics.holm([statistics.mcnemar_p(*pair) for pair in counts])
        significant = [(pair, p) for pair, p in zip(counts, adjusted, strict=True) if p <= statistics.ALPHA]
        alarms += any(verdict_of(*pair, documents, 1e-6, p) == "worse" for pair, p in significant)
    assert alarms <= 0.05 * 2000


def test_a_loss_of_the_margin_passes_in_one_run_of_20_at_most():
    """The other error: 2000 runs of a format that loses just what is not allowed."""
    passed = sum(
        verdict_of(*pair, 1000, 0.02, None) in ("equivalent", "non-inferior")
        for pair in simulated(0.05, 0.03, 1000, 2000, seed=1).tolist()
    )
    assert passed <= 0.06 * 2000  # 5 %, and what 2000 draws may be off by


def test_resampled_scores_without_loss_are_called_worse_in_one_run_of_20_at_most():
    """2000 runs of documents whose scores differ by noise with heavy tails, one task each."""
    alarms, missed = 0, 0
    for seed in range(2000):
        noise = Totals(np.random.default_rng(seed).standard_t(4, size=40), np.ones(40), 40)
        wide, narrow = statistics.bootstrap_t(noise, [0.95, 0.9], seed=seed)
        missed += not wide.lo <= 0 <= wide.hi
        p = statistics.sign_flip_p(noise, seed) if wide.hi < 0 else 1.0
        alarms += verdict(wide, narrow, 1e-6, p) == "worse"
    assert alarms <= 0.05 * 2000
    assert missed <= 0.07 * 2000


def test_verdicts_from_intervals_by_hand():
    settled, wide = Interval(-0.005, 0.005), Interval(-0.008, 0.008)
    assert verdict(wide, settled, 0.01, 1.0) == "equivalent"
    assert verdict(Interval(-0.012, 0.03), Interval(-0.009, 0.02), 0.01, 1.0) == "non-inferior"
    assert verdict(Interval(-0.05, -0.01), Interval(-0.045, -0.015), 0.01, 0.01) == "worse"
    assert verdict(Interval(-0.05, -0.01), Interval(-0.045, -0.015), 0.01, 0.06) == "inconclusive"
    assert verdict(Interval(-0.05, 0.01), Interval(-0.04, 0.005), 0.01, 0.2) == "inconclusive"
    assert verdict(Interval(None, None), Interval(None, None), 0.01, None) == "inconclusive"
    assert verdict(Interval(-0.005, -0.001), Interval(-0.004, -0.002), 0.01, 0.001) == "equivalent"
