"""Statistics of paired scores recomputed by plain loops or by hand, to the digit: what planted faults got past."""

import math

import numpy as np
import pytest
from scipy import stats
from test_pairing import RECIPE, aggregate_only, bf16_and_nvfp4, scores_of, the_row

from dsmla_bench.evals import paired_statistics as statistics
from dsmla_bench.evals.comparing import NEGLIGIBLE
from dsmla_bench.evals.judging import verdict
from dsmla_bench.evals.paired_statistics import RESAMPLES, Interval, Totals
from dsmla_bench.evals.scores import Aggregate, TaskScores


def test_the_bootstrap_is_its_definition_in_loops():
    generator = np.random.default_rng(3)
    weights = generator.uniform(50, 150, 12)
    found = Totals(weights * generator.normal(size=12), weights, 12)
    spread = []
    for drawn in np.random.default_rng(5).integers(12, size=(RESAMPLES, 12)).tolist():
        differences, sizes = [found.differences[n] for n in drawn], [weights[n] for n in drawn]
        delta = sum(differences) / sum(sizes)
        squares = sum((difference - delta * size) ** 2 for difference, size in zip(differences, sizes, strict=True))
        spread.append((delta - found.delta) / (math.sqrt(12 / 11 * squares) / sum(sizes)))
    spread.sort()
    # The smallest value that at least 2.5 %, 97.5 % of the 1999 are not above.
    low, high = spread[math.ceil(0.025 * RESAMPLES) - 1], spread[math.ceil(0.975 * RESAMPLES) - 1]
    error = statistics.standard_error(found)
    (interval,) = statistics.bootstrap_t(found, [0.95], seed=5)
    assert (interval.lo, interval.hi) == pytest.approx((found.delta - high * error, found.delta - low * error))


@pytest.mark.parametrize(
    ("delta", "needed"),
    [
        (-0.005, 7420),  # 6.183 · 0.03 / (0.01 - 0.005)^2: a loss within the margin takes fewer than a loss: 9419
        (-0.008, 3680),  # 7.849 · 0.03 / 0.008^2: a loss takes fewer than one within the margin: 46 370
        (-0.02, 2001),  # beyond the margin: 589 would show the loss, so one more than there are
        (0.001, 2001),  # a gain: 1533 would do
    ],
)
def test_the_documents_that_settle_what_the_data_hints_at(delta, needed):
    error = math.sqrt(0.03 / 2000)
    assert statistics.documents_needed(delta, error, 2000, 0.01) == pytest.approx(needed, abs=2)


def test_the_interval_of_a_row_is_that_of_95_percent_and_its_verdict_rests_on_90():
    row = the_row(*bf16_and_nvfp4())
    interval = statistics.tango_interval(14, 3, 200, 0.95)
    assert (row.delta_lo, row.delta_hi) == (interval.lo, interval.hi)
    unpaired = the_row(aggregate_only("fp8", 139, 164), aggregate_only("nvfp4", 148, 164))
    error = math.sqrt(139 / 164 * 25 / 164 / 163 + 148 / 164 * 16 / 164 / 163)
    assert unpaired.delta_lo == pytest.approx(9 / 164 - 1.959964 * error)


def test_graded_answers_are_resampled():
    """Half a point is neither lost nor gained, so McNemar's test does not apply."""
    before, after = [1.0, 0.5, 0.0, 1.0, 0.5, 0.25] * 5, [1.0, 0.0, 0.0, 0.5, 0.5, 0.25] * 5
    row = the_row(scores_of("bf16", before), scores_of("fp8", after))
    assert (row.method, row.lost, row.gained) == ("bootstrap-t", None, None)


@pytest.mark.parametrize("p", [0.001, 0.5])
def test_an_interval_that_holds_gains_is_never_worse(p):
    assert verdict(Interval(-0.05, 0.01), Interval(-0.04, 0.005), 0.01, p) == "inconclusive"


def test_unpaired_perplexities_are_compared_as_logarithms_with_relative_errors():
    sides = [
        TaskScores(
            name, "prose", RECIPE, (Aggregate("none", "word_perplexity", *figures, 100, "exp_mean", False, False),)
        )
        for name, figures in (("bf16", (8.0, 0.2)), ("fp8", (8.4, 0.25)))
    ]
    row = the_row(*sides)
    delta, error = math.log(1.05), math.hypot(0.2 / 8.0, 0.25 / 8.4)
    assert row.delta == pytest.approx(delta)
    assert (row.delta_lo, row.delta_hi) == pytest.approx((delta - 1.959964 * error, delta + 1.959964 * error))


def bits_per_byte(format, values):
    """A task of which less is better, of one document each."""
    aggregate = Aggregate("none", "bits_per_byte", float(np.mean(values)), None, len(values), "mean", False, False)
    return scores_of(format, list(values), task="prose", aggregate=aggregate)


def test_an_interval_turns_round_where_less_is_better():
    """Bits that may be fewer or more by far settle nothing, whichever bound is looked at."""
    noise = np.random.default_rng(0).normal(size=30)
    row = the_row(bits_per_byte("bf16", np.full(30, 2.0)), bits_per_byte("fp8", 2.0 + noise))
    assert row.delta_lo < 0 < row.delta_hi
    assert row.verdict == "inconclusive"


@pytest.mark.parametrize("documents", [2, 3, 20])
def test_last_bits_of_one_document_are_equivalent(documents):
    """A margin of 0.01; most resamples of the documents have no spread to divide by."""
    before = np.full(documents, 2.0)
    after = before + np.array([6e-5] + [0.0] * (documents - 1))
    row = the_row(bits_per_byte("bf16", before), bits_per_byte("bf16 (A/A)", after))
    assert (row.verdict, row.method) == ("equivalent", "student-t")
    low, high = stats.t.interval(0.95, documents - 1, 6e-5 / documents, stats.sem(after - before))
    assert (row.delta_lo, row.delta_hi) == pytest.approx((low, high))


def test_a_difference_of_one_document_that_is_not_negligible_stays_inconclusive():
    """A fifth of the margin in one document of 20: what others lose may be more."""
    before = np.full(20, 2.0)
    row = the_row(bits_per_byte("bf16", before), bits_per_byte("fp8", before + np.array([0.002] + [0.0] * 19)))
    assert (row.verdict, row.method) == ("inconclusive", "bootstrap-t")


@pytest.mark.parametrize("sign", [1, -1])
def test_negligible_means_a_tenth_of_the_margin_in_either_direction(sign):
    before, differing = np.full(20, 2.0), np.array([0.00101] + [0.0] * 19)
    within = the_row(bits_per_byte("bf16", before), bits_per_byte("fp8", before + sign * 0.98 * differing))
    beyond = the_row(bits_per_byte("bf16", before), bits_per_byte("fp8", before + sign * differing))
    assert (within.method, beyond.method) == ("student-t", "bootstrap-t")


def test_the_largest_difference_is_for_a_documents_weight():
    assert Totals(np.array([0.06, -0.5, 0.0]), np.array([1000.0, 100.0, 50.0]), 3).largest == 0.005


def test_students_interval_of_negligible_differences_is_always_within_the_margin():
    """The worst case of any signs and weights: two clusters."""
    generator = np.random.default_rng(0)
    for count in generator.integers(2, 6, 500).tolist():
        weights = np.exp(generator.normal(size=count))
        found = Totals(weights * NEGLIGIBLE * generator.choice([-1, 0, 1], count), weights, count)
        interval = statistics.students_t(found.delta, statistics.standard_error(found), count, 0.9)
        assert max(-interval.lo, interval.hi) < 0.64


def test_shares_that_hardly_differ_are_not_negligible():
    """A loss of 0.0001 in one answer of 30, graded from 0 to 1, proves no more than none: the next may be 1."""
    before, after = [0.5] * 30, [0.4999] + [0.5] * 29
    row = the_row(scores_of("bf16", before), scores_of("fp8", after))
    assert (row.verdict, row.method) == ("inconclusive", "bootstrap-t")


def test_a_skewed_loss_of_the_margin_is_hardly_ever_taken_for_negligible():
    """2000 formats that lose 0.01, the margin, on average, of two documents each: (1 - exp(-0.1))² of them are."""
    generator, before, negligible = np.random.default_rng(1), np.full(2, 2.0), 0
    for _ in range(2000):
        after = before + generator.exponential(0.01, 2)
        negligible += the_row(bits_per_byte("bf16", before), bits_per_byte("fp8", after)).method == "student-t"
    assert negligible <= 0.02 * 2000


def test_a_significant_loss_within_the_margin_is_equivalent_and_said_so():
    loss = np.random.default_rng(0).normal(1e-3, 1e-4, 80)
    row = the_row(bits_per_byte("bf16", np.full(80, 2.0)), bits_per_byte("fp8", 2.0 + loss))
    assert (row.verdict, row.p_holm <= 0.05, row.notes[0]) == (
        "equivalent", True, "a significant loss, but within the margin",
    )  # fmt: skip


def test_an_inconclusive_loss_says_how_many_documents_settle_it():
    """35 lost and 25 gained of 2000: 7420 documents would show a loss of 0.5 points to be within the margin."""
    before, after = [1.0] * 35 + [0.0] * 25 + [1.0] * 1940, [0.0] * 35 + [1.0] * 25 + [1.0] * 1940
    row = the_row(scores_of("bf16", before), scores_of("fp8", after))
    assert (row.verdict, row.needed) == ("inconclusive", pytest.approx(7420, abs=2))


def test_documents_without_a_counterpart_are_left_out_and_said_so():
    row = the_row(scores_of("bf16", [1.0, 0.0, 1.0, 1.0, 1.0]), scores_of("fp8", [1.0, 0.0, 1.0]))
    assert (row.documents, row.notes[0]) == (3, "2 documents without a counterpart left out")
