"""Timing, by pure functions and on a fake device: records to launches, rotation, slopes, the harness's self-test."""

import pytest
import torch

from dsmla_bench.bench.activity import LaunchTime, Record, launch_times
from dsmla_bench.bench.device import METHODS, MeasurementError, Timing
from dsmla_bench.bench.graphs import launches_for, quantum_us, slope_us
from dsmla_bench.bench.rotation import Rotation, plan_rotation
from dsmla_bench.bench.selftest import resolution, run_checks

L2 = 60 * 2**20


def records(*spans: tuple[str, int, int]) -> list[Record]:
    return [Record(*span) for span in spans]


SEPARATED = records(
    ("hand_over_kernel", 0, 50),
    ("separator_kernel", 60, 61),
    ("copy", 62, 66),
    ("write", 67, 70),
    ("separator_kernel", 71, 72),
    ("copy", 80, 1080),
    ("write", 1100, 3100),
    ("separator_kernel", 3200, 3201),
)


def test_a_launch_is_what_starts_between_two_separators():
    """Span from the first start to the last end, sum of the durations; what comes before the graph counts nowhere."""
    assert launch_times(SEPARATED, launches=2, skip=0, early=[False]) == [
        LaunchTime(0.008, 0.007),
        LaunchTime(3.02, 3.0),
    ]
    assert launch_times(SEPARATED, launches=2, skip=1, early=[False]) == [LaunchTime(3.02, 3.0)]
    assert launch_times(list(reversed(SEPARATED)), 2, 1, [False]) == [LaunchTime(3.02, 3.0)], "in any order"


def test_a_replay_that_the_device_reached_too_early_tells_no_time():
    later = [Record(record.name, record.start_ns + 10_000, record.end_ns + 10_005) for record in SEPARATED]
    good = launch_times(later, 2, 0, [False])
    assert launch_times([*SEPARATED, *later], 2, 0, [True, False]) == good
    assert len(launch_times([*SEPARATED, *later], 2, 0, [False, False])) == 4


def test_work_on_another_stream_belongs_to_its_launch():
    aside = [*SEPARATED, Record("aside", 90, 3150)]
    assert launch_times(aside, 2, 1, [False]) == [LaunchTime(3.07, 6.06)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (SEPARATED[:-1], "recorded 2 of 3 separators"),
        ([*SEPARATED[:2], *SEPARATED[4:]], "recorded nothing for a launch"),
        ([*SEPARATED, Record("aside", 90, 9000)], "not joined to its stream"),
        ([record for record in SEPARATED if record.start_ns != 1100], "recorded 1 items for a launch and 2 before"),
        ([], "recorded 0 of 3 separators"),
    ],
)
def test_incomplete_records_are_an_error_not_a_time(broken, message):
    with pytest.raises(MeasurementError, match=message):
        launch_times(broken, launches=2, skip=0, early=[False])


@pytest.mark.parametrize("nbytes", [1, 2_000, 10**6, L2 // 10, L2, 10 * L2])
@pytest.mark.parametrize("launches", [1, 4, 10, 24, 500])
def test_every_rotation_touches_twice_the_l2_between_reuses(nbytes, launches):
    """Also where launches are fewer than the buffers that rotation alone would need: then no buffer is used twice."""
    rotation = plan_rotation(nbytes, L2, launches)
    assert rotation.buffers <= launches
    assert rotation.bytes_between_reuses() >= 2 * L2
    uses = [launch % rotation.buffers for launch in range(launches)]
    for launch, buffer in enumerate(uses):
        earlier = [index for index in range(launch) if uses[index] == buffer]
        if earlier:
            assert (launch - earlier[-1] - 1) * nbytes >= 2 * L2


def test_a_warm_rotation_is_refused():
    with pytest.raises(ValueError, match="2 buffers of 1000 bytes leave 1000 bytes between reuses"):
        Rotation(launches=3, buffers=2, bytes_per_launch=1000, l2_bytes=L2)
    with pytest.raises(ValueError, match=f"a cold measurement needs twice the L2, {2 * L2}"):
        Rotation(launches=3, buffers=2, bytes_per_launch=2 * L2 - 1, l2_bytes=L2)


def test_slow_operations_get_fewer_launches_but_never_a_slope_of_nothing():
    for estimate in (0.5, 10.0, 166.0, 167.0, 5000.0):
        short, long = launches_for(estimate)
        assert 0 < short < long


def test_a_slope_leaves_out_what_a_graph_launch_costs():
    """Case B6: 12.1472 µs for one call and 93.0272 µs for 78 are 1.05 µs a call, and 11.1 µs for the launch."""
    assert slope_us(12.1472, 1, 93.0272, 78) == pytest.approx(1.0504, abs=5e-5)
    assert 12.1472 - slope_us(12.1472, 1, 93.0272, 78) == pytest.approx(11.10, abs=5e-3)


def test_quantum_is_the_smallest_step_of_the_clock():
    assert quantum_us([1.0, 1.032, 1.096, 1.0]) == pytest.approx(0.032)
    assert quantum_us([1.0, 1.0]) is None


class KnownDevice:
    """A device whose readings are what they should be, but for the faults it is given."""

    def __init__(self, stretch=1.0, ignores_side_stream=False, cold_is_hot=False):
        self.stretch, self.ignores_side_stream, self.cold_is_hot = stretch, ignores_side_stream, cold_is_hot
        self.spun = 0.0

    def spin(self, microseconds):
        def call():
            self.spun = microseconds
            return 0.4 + microseconds * self.stretch

        return call

    def spun_us(self):
        return self.spun

    def copy(self, nbytes):
        return lambda: 2.0

    def on_side_stream(self, call):
        return lambda: call() * (0.0 if self.ignores_side_stream else 1.0)

    def calibrate(self, methods):
        return {"floor_us": 0.7, "quantum_us": 0.001, "copy_gbps": 4000.0}

    def time(self, bind, nbytes, l2_state, methods):
        us = bind(0)() * (2.0 if l2_state == "cold" and not self.cold_is_hot else 1.0)
        return Timing({method: [us] * 3 for method in methods})


def failed(**faults) -> set[str]:
    return {check.name for check in run_checks(KnownDevice(**faults), METHODS) if not check.ok}


def test_selftest_passes_on_a_device_that_reads_right_and_fails_on_one_that_does_not():
    assert failed() == set()
    assert failed(stretch=1.05) == {"spin 5 µs", "spin 10 µs", "spin 20 µs"}, "2 µs + 5 % is within 0.1 µs"
    assert failed(ignores_side_stream=True) == {"work on a second stream"}
    assert failed(cold_is_hot=True) == {"cold copy, hot one first"}


def test_the_smallest_effect_is_at_least_twice_the_quantum():
    facts = resolution(KnownDevice(), "graph")
    assert facts["smallest_effect"] == pytest.approx(2 * 0.001 / 5.4)


@pytest.mark.gpu
def test_a_graph_keeps_what_its_calls_use():
    from dsmla_bench.bench.kernels import ReadyGraph

    out = torch.zeros(1 << 20, device="cuda")

    def fill_with(value: float):
        source = torch.full_like(out, value)
        return lambda: out.copy_(source)

    graph = ReadyGraph([fill_with(2.0)])
    fill_with(7.0)  # takes the memory of whatever is gone
    graph.replay()
    assert out.unique().tolist() == [2.0]


@pytest.mark.gpu
def test_the_harness_reads_back_what_is_known():
    from dsmla_bench.bench.cuda import CudaDevice

    wrong = [check for check in run_checks(CudaDevice(0), METHODS) if not check.ok]
    assert not wrong
