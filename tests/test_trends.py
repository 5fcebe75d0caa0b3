"""Change points, segments and alarms: what is found, what is not, and how often noise is taken for a change."""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from histories import QUANTUM_US, history_frame, noisy_figures, step

from dsmla_bench.reports.findings import advice, findings_of
from dsmla_bench.reports.trend_frame import LIVE, RECENT, trends_of
from dsmla_bench.reports.trends import change_points, exact_changes, relative, screen

STEADY = 8.0 + 0.02 * np.array([0, 1, -1, 2, 0, -2, 1, 0, -1, 1] * 6)
NIGHTS = len(STEADY)


def stepped(size, at, figures=STEADY):
    return figures * step(len(figures), at, size, us=1.0)


def trend_of(frame, column="us"):
    (trend,) = [trend for trend in trends_of(frame, "rows").trends if trend.watched.column == column]
    return trend


def findings(frame):
    return findings_of([trends_of(frame, "rows")])


# The study: noise of a real machine, 60 commits, judged anew after every commit

NOISE = {"usual": {}, "locked clocks": {"session": 0.002}, "coarse clock": {"quantum_us": 0.5}}


def false_share(rng, series, **noise):
    """The share of unchanged 60-commit series in which a change was found after any of the commits."""
    quantum = noise.get("quantum_us", QUANTUM_US)
    unchanged = (noisy_figures(rng, step(60, 60, 0), **noise) for _ in range(series))
    return np.mean([any(change_points(figures[:n], quantum) for n in range(6, 61)) for figures in unchanged])


def found_share(rng, series, size, commits=5, **noise):
    """The share of steps at commit 45 that are found, to within three commits, at most ``commits`` later."""
    quantum = noise.get("quantum_us", QUANTUM_US)
    known = range(45 + 3, 45 + commits + 1)

    def is_found(figures):
        return any(abs(point.index - 45) <= 3 for n in known for point in change_points(figures[:n], quantum))

    return np.mean([is_found(noisy_figures(rng, step(60, 45, size), **noise)) for _ in range(series)])


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_at_most_one_percent_of_unchanged_series_give_an_alarm(noise):
    assert false_share(np.random.default_rng(2026), 400, **noise) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["usual", "locked clocks"])
@pytest.mark.parametrize("size", [0.05, -0.05])
def test_a_step_of_five_percent_is_found_within_five_commits(noise, size):
    assert found_share(np.random.default_rng(2027), 300, size, **NOISE[noise]) >= 0.90


@pytest.mark.slow
def test_a_step_below_the_quantum_is_rightly_not_guessed_at_and_a_larger_one_is_found():
    rng = np.random.default_rng(2028)
    assert found_share(rng, 100, 0.05, **NOISE["coarse clock"]) <= 0.05
    assert found_share(rng, 100, 0.10, **NOISE["coarse clock"]) >= 0.90


# Change points


def test_a_change_point_says_where_and_from_what_to_what():
    (point,) = change_points(stepped(0.05, 40))
    assert point.index == 40
    assert (point.before, point.after) == (STEADY[:40].mean(), 1.05 * STEADY[40:].mean())
    assert point.change == pytest.approx(0.05, abs=1e-3)


def test_a_step_up_and_one_down_are_two_and_a_long_series_repeats_none():
    figures = np.tile(STEADY, 10)
    figures[200:320] *= 1.06
    assert [point.index for point in change_points(figures)] == [200, 320]


def test_two_figures_are_no_level_three_are():
    assert change_points(stepped(0.2, NIGHTS - 2)) == []
    assert [point.index for point in change_points(stepped(0.2, NIGHTS - 3))] == [NIGHTS - 3]


def test_three_percent_is_the_least_change_and_a_quantum_the_least_step():
    assert change_points(stepped(0.028, 30)) == []
    assert change_points(stepped(0.05, 30), quantum=0.5) == []
    assert change_points(stepped(0.07, 30), quantum=0.5)


def test_equal_figures_do_not_divide_by_their_spread():
    flat = np.full(40, 8.0)
    assert change_points(flat) == []
    assert screen(flat) is None
    assert [point.index for point in change_points(stepped(0.05, 20, flat))] == [20]


@pytest.mark.parametrize("count", range(6))
def test_too_few_figures_say_nothing(count):
    assert change_points(STEADY[:count]) == []
    assert screen(STEADY[:count]) is None


def test_the_screen_sees_the_newest_figure_only():
    assert screen(stepped(0.05, NIGHTS - 1)).index == NIGHTS - 1
    assert screen(stepped(0.02, NIGHTS - 1)) is None
    assert screen(stepped(0.05, NIGHTS - 1), quantum=0.5) is None
    assert screen(np.where(np.arange(NIGHTS) == 30, 9.0, STEADY)) is None


def test_exact_figures_change_when_they_change():
    figures = np.array([0.0951, 0.0951, 0.0951 * (1 + 1e-9), 0.0999, 0.0951])
    assert [(point.index, round(point.change, 3)) for point in exact_changes(figures)] == [(3, 0.05), (4, -0.048)]
    assert relative(0.0, 1.0) == float("inf")


# Segments


@pytest.mark.parametrize(
    ("column", "old", "new", "reason"),
    [
        ("driver", "580.159", "585.20", "driver 580.159 → 585.20"),
        ("method", "activity", "graph", "timing method activity → graph"),
    ],
)
def test_levels_are_not_compared_across_a_new_ruler(column, old, new, reason):
    marks = {column: [old] * 40 + [new] * (NIGHTS - 40)}
    trend = trend_of(history_frame(stepped(0.2, 40), **marks))
    (segment,) = trend.segments
    assert (segment.start, segment.reasons, segment.compared) == (40, (reason,), False)
    assert trend.changes == []


@pytest.mark.parametrize(
    ("column", "reason"),
    [("device_uuid", "device aaaaaaaa → bbbbbbbb"), ("tool_version", "dsmla-bench aaaaaaaa-1 → bbbbbbbb-1")],
)
def test_a_new_device_or_benchmark_version_is_a_new_series(column, reason):
    marks = {name: ["aaaaaaaa-1"] * 40 + ["bbbbbbbb-1"] * (NIGHTS - 40) for name in (column, "series")}
    trend = trend_of(history_frame(stepped(0.2, 40), **marks))
    assert [(segment.start, segment.reasons) for segment in trend.segments] == [(40, (reason,))]
    assert trend.changes == []


def test_devices_that_take_turns_are_judged_each_for_itself():
    devices = ["GPU-a", "GPU-b"] * (NIGHTS // 2)
    figures = np.where(np.arange(NIGHTS) % 2, 1.1, 1.0) * stepped(0.05, 40)
    trend = trend_of(history_frame(figures, device_uuid=devices, series=devices))
    assert [(change.good, change.bad) for change in trend.changes] == [(38, 40), (39, 41)]
    assert [segment.start for segment in trend.segments] == [1]


def test_a_new_kernel_starts_a_segment_and_is_compared_across():
    kernels = ["a" * 64] * 40 + ["b" * 64] * (NIGHTS - 40)
    trend = trend_of(history_frame(stepped(0.05, 40), binary_sha256=kernels))
    (segment,) = trend.segments
    assert (segment.start, segment.reasons, segment.compared) == (40, ("kernel aaaaaaaa → bbbbbbbb",), True)
    assert [(change.bad, change.kernel) for change in trend.changes] == [(40, True)]


def test_what_is_unknown_is_not_new():
    assert trend_of(history_frame(STEADY, driver=[None] * 30 + ["585"] * 30)).segments == []


# Alarms


def test_a_confirmed_regression_names_the_commits_to_bisect():
    (finding,) = findings(history_frame(stepped(0.05, NIGHTS - 5)))
    good, bad = (f"{NIGHTS - n:08x}" * 5 for n in (6, 5))
    assert (finding.kind, finding.fails) == ("regression", True)
    assert (finding.good_commit, finding.bad_commit) == (good, bad)
    assert finding.text == "time +4.9 % (8.00 → 8.40 µs) since 2024-02-25"
    assert advice(finding) == f"git bisect start {bad} {good}"


def test_a_change_without_a_commit_between_is_laid_to_the_machine():
    (finding,) = findings(history_frame(stepped(0.05, NIGHTS - 5), commit="c0ffee"))
    assert "no commit caused it" in advice(finding)


def test_one_unusual_figure_is_a_reason_to_measure_again_and_fails_nothing():
    (finding,) = findings(history_frame(stepped(0.05, NIGHTS - 1)))
    assert (finding.kind, finding.fails) == ("unusual", False)
    assert "measure commits" in advice(finding)


def test_a_large_improvement_never_fails():
    frame = history_frame(stepped(-0.3, NIGHTS - 5))
    assert [change.verdict for change in trend_of(frame).changes] == ["better"]
    assert findings(frame) == []


def test_a_regression_is_news_for_ten_runs_and_not_once_it_is_taken_back():
    assert findings(history_frame(stepped(0.05, NIGHTS - RECENT)))
    assert findings(history_frame(stepped(0.05, NIGHTS - RECENT - 1))) == []
    mended = stepped(0.05, NIGHTS - 9)
    mended[-4:] = STEADY[-4:]
    assert [change.verdict for change in trend_of(history_frame(mended)).changes] == ["worse", "better"]
    assert findings(history_frame(mended)) == []


def test_a_series_that_has_ended_raises_no_alarm():
    ended = history_frame(stepped(0.05, NIGHTS - 5), row_id="ended", device="old", device_uuid="old", series="old")
    living = history_frame(STEADY)
    living["started_at"] += LIVE + timedelta(days=1)
    living["run_id"] += "-later"
    assert findings(pd.concat([ended, living])) == []


def test_a_row_that_is_incorrect_now_has_no_figure_and_fails():
    frame = history_frame(STEADY, status=["ok"] * (NIGHTS - 1) + ["incorrect"], reason="17 bytes differ")
    (finding,) = findings(frame)
    assert str(finding) == "no figure: write fp8_ds_mla, NVIDIA H200: incorrect: 17 bytes differ"
    assert len(trend_of(frame).figures) == NIGHTS - 1
    skipped = history_frame(STEADY, status=["ok"] * (NIGHTS - 1) + ["skipped"], reason="no vllm here")
    assert findings(skipped) == []


def test_errors_are_judged_exactly_and_by_their_own_direction():
    frame = history_frame(STEADY).drop(columns=["us", "quantum_us", "operation"])
    frame = frame.assign(part="both", rel_l2=[0.0951] * 59 + [0.0999], snr_db=[20.4] * 59 + [20.0])
    found = findings_of([trends_of(frame, "errors")])
    assert [(finding.metric, finding.text.split(" (")[0]) for finding in found] == [
        ("rel_l2", "rel-L2 error +5.0 %"),
        ("snr_db", "SNR -2.0 %"),
    ]
