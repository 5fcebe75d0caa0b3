"""Verdicts on a row's time at their limits, by hand: what planted faults got past."""

import pytest

from dsmla_bench.reports.verdicts import Evidence, judge


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("now", [13.0, 7.0])
def test_three_processes_prove_nothing_however_far_apart(now, paired):
    """Of 3 pairs one in 4 sign patterns, of 3 and 3 one in 10 orders is as far from none: no interval of 99 %."""
    found = judge(Evidence([10.0, 10.01, 9.99], [now, now + 0.01, now - 0.01], paired=paired))
    assert (found.verdict, found.reason) == ("ambiguous", "too few processes for any verdict")
    assert abs(found.change) == pytest.approx(0.3, abs=2e-3)


@pytest.mark.parametrize(("now", "verdict"), [(10.3, "slow"), (9.7, "fast"), (10.1, "same"), (9.9, "same")])
def test_twelve_steady_pairs_prove_three_percent_and_not_one(now, verdict):
    pairs = [0.002 * (-1) ** number for number in range(12)]
    found = judge(Evidence([10.0 + noise for noise in pairs], [now + noise for noise in pairs], paired=True))
    assert (found.verdict, found.reason) == (verdict, "")


@pytest.mark.parametrize("direction", [1, -1])
def test_an_interval_that_reaches_beyond_the_gate_is_not_the_same(direction):
    """Six pairs differ by 0.6 % and six by 2.4 %: both are in the interval, and 2 % may be exceeded."""
    now = [10.0 * (1 + direction * (0.015 + 0.009 * (-1) ** number)) for number in range(12)]
    found = judge(Evidence([10.0] * 12, now, paired=True))
    assert (found.verdict, found.reason) == ("ambiguous", "the interval is too wide to tell; add pairs")
    assert found.gate == 0.02
