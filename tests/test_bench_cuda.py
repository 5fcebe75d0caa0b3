"""Timing on a simulated GPU (``fake_cuda``): both methods read back what it takes, and say so where they cannot.

``test_timing.py`` has the arithmetic by itself, and the same self-test on a real GPU.
"""

import functools
from types import SimpleNamespace

import fake_cuda
import fake_nvml
import pytest
from fake_cuda import COPY_US, EMPTY_US, GRAPH_US, L2_BYTES, NODE_US, PRODUCT_US

from dsmla_bench.bench.cuda import CudaDevice
from dsmla_bench.bench.device import METHODS, MeasurementError
from dsmla_bench.bench.kernels import ReadyGraph
from dsmla_bench.bench.measure import cuda_bench
from dsmla_bench.bench.rotation import plan_rotation
from dsmla_bench.bench.selftest import run_checks
from dsmla_bench.bench.tune import tune_bench
from dsmla_bench.bench.worker import WorkerConfig

COLD_US, HOT_US = 9.0, 4.0


@pytest.fixture
def gpu(monkeypatch):
    fake_nvml.install(monkeypatch, missing=True)
    return fake_cuda.install(monkeypatch)


@pytest.fixture
def device(gpu):
    return CudaDevice(0)


def timed(device, gpu, nbytes=L2_BYTES // 10, l2_state="cold", methods=METHODS):
    """What the device says of an operation that takes ``HOT_US`` or ``COLD_US``, and how many buffers it asked for."""
    operation = functools.cache(lambda index: gpu.operation(index, nbytes, COLD_US, HOT_US))
    return device.time(operation, nbytes, l2_state, methods), operation.cache_info().currsize


# What is read back


@pytest.mark.parametrize("nbytes", [1000, L2_BYTES // 10, 3 * L2_BYTES])
def test_cold_is_never_in_l2_and_hot_always_by_both_methods(device, gpu, nbytes):
    """What a graph launch costs is in no time; a graph's slope has the cost of one node in it."""
    cold, buffers = timed(device, gpu, nbytes)
    assert set(cold.samples["activity"]) == {COLD_US}
    assert cold.samples["graph"] == pytest.approx([COLD_US + NODE_US] * len(cold.samples["graph"]), abs=1e-3)
    assert buffers == plan_rotation(nbytes, L2_BYTES, 24).buffers
    if nbytes <= L2_BYTES:
        hot, buffers = timed(device, gpu, nbytes, "hot")
        assert (set(hot.samples["activity"]), buffers) == ({HOT_US}, 1)
        assert hot.samples["graph"] == pytest.approx([HOT_US + NODE_US] * len(hot.samples["graph"]), abs=1e-3)


def test_the_harness_reads_back_what_is_known(device):
    assert [check for check in run_checks(device, METHODS) if not check.ok] == []


def test_a_slow_operation_is_launched_a_few_times_only(device, gpu):
    for us, launches in ((HOT_US, 24), (5000.0, 4)):
        gpu.graphs.clear()
        found = device.time(lambda index, us=us: gpu.operation(index, 1000, us, us), 1000, "hot", ["graph"])
        assert found.samples["graph"] == pytest.approx([us + NODE_US] * 15, abs=1e-3)
        assert max(len(graph.launches) for graph in gpu.graphs) == launches


def test_what_must_come_right_before_a_graph_is_not_in_its_time(gpu):
    gpu.operation("a", 1000, COLD_US, HOT_US)()
    graph = ReadyGraph([gpu.operation("a", 1000, COLD_US, HOT_US)] * 2, before=lambda: gpu.do("flush", lambda: 20.0))
    assert graph.timed_replay() == GRAPH_US + 2 * (HOT_US + NODE_US)
    assert [record.name for record in gpu.records[-4:]] == ["hand_over_kernel", "flush", "operation", "operation"]


def test_what_was_timed_can_be_done_again(device, gpu):
    found, _ = timed(device, gpu)
    before = len(gpu.records)
    for replay in found.replays:
        replay()
    names = [record.name for record in gpu.records[before:]]
    assert names.count("operation") == 24 * len(METHODS)


def test_the_ceilings_are_those_of_an_empty_launch_the_fastest_copy_and_a_product(device, monkeypatch):
    nbytes, size = 2 * L2_BYTES, 64
    monkeypatch.setattr(CudaDevice, "copy_gbps", functools.partialmethod(CudaDevice.copy_gbps, nbytes))
    monkeypatch.setattr(CudaDevice, "matmul_tflops", functools.partialmethod(CudaDevice.matmul_tflops, size))
    found = device.calibrate(METHODS)
    (fastest,) = COPY_US.values()
    assert found["floor_us"] == EMPTY_US
    assert found["quantum_us"] is None, "this clock reads the same each time"
    assert found["copy_gbps"] == pytest.approx(2 * nbytes / (fastest + NODE_US) / 1e3, rel=1e-3)
    assert found["matmul_tflops"] == pytest.approx(2 * size**3 / (PRODUCT_US + NODE_US) / 1e6, rel=1e-3)
    assert found["sm_mhz"] == pytest.approx(1980, rel=1e-4)
    assert device.calibrate(["graph"])["floor_us"] == pytest.approx(EMPTY_US + NODE_US, abs=1e-3), "by the first method"


@pytest.mark.parametrize("make_bench", [cuda_bench, tune_bench])
def test_a_bench_leaves_the_device_to_the_one_before_it_until_it_begins(gpu, monkeypatch, make_bench):
    monkeypatch.setattr(CudaDevice, "calibrate", lambda device, methods: {"floor_us": EMPTY_US, "methods": methods})
    bench = make_bench(WorkerConfig("cuda", methods=["graph"]))
    assert gpu.records == []
    bench.begin()
    measuring = getattr(bench, "_bench", bench)
    assert (measuring.device.name, measuring.calibration["methods"]) == ("Simulated", ["graph"])
    assert gpu.records != []


# What is said beside it


def test_the_lowest_clock_every_reason_and_the_most_processes_are_told(device, gpu):
    gpu.clocks = [1980.0, 1400.0, 1700.0]
    reasons, others = iter([["power cap"], [], ["thermal (hardware)"]]), iter([0, 2, 1])
    device.nvml = SimpleNamespace(throttle_reasons=lambda: next(reasons), other_processes=lambda: next(others))
    facts = timed(device, gpu)[0].facts
    assert facts == {
        "sm_mhz": pytest.approx(1400, rel=1e-4),
        "throttle_reasons": "power cap, thermal (hardware)",
        "other_processes": 2,
        "us_sum": COLD_US,
    }


def test_without_nvml_the_peak_is_the_published_one_and_nobody_is_accused(monkeypatch, device, gpu):
    assert device.peak_gbps == 4800.0
    facts = timed(device, gpu)[0].facts
    assert (facts["throttle_reasons"], facts["other_processes"]) == (None, 0)
    fake_nvml.install(monkeypatch, bus_bits=6144, mhz=3201)
    assert CudaDevice(0).peak_gbps == pytest.approx(2 * 3201 * 6144 / 8 / 1e3)


# What cannot be trusted is no time


def test_a_replay_that_the_device_reached_too_early_is_not_used_and_the_next_one_waits_longer(device, gpu):
    gpu.early = [True, True]
    found, _ = timed(device, gpu, methods=["graph"])
    assert found.samples["graph"] == pytest.approx([COLD_US + NODE_US] * 15, abs=1e-3)
    first, second, third, *_ = gpu.handed_over_ns
    assert (second, third) == (2 * first, 4 * first)


def test_an_early_replay_of_a_profiled_graph_leaves_records_and_tells_no_time(device, gpu):
    estimates, replays = 3, 3
    gpu.early = [False] * estimates + [True]
    found, _ = timed(device, gpu, methods=["activity"])
    assert (gpu.early, len(gpu.handed_over_ns)) == ([], estimates + 1 + replays)
    assert found.samples["activity"] == [COLD_US] * replays * (24 - 4)


def test_a_device_that_stays_ahead_of_the_host_is_an_error(device, gpu):
    gpu.early = [True] * 6
    with pytest.raises(MeasurementError, match="before the host had handed it over, 6 times"):
        timed(device, gpu)


def test_incomplete_records_are_taken_again_and_given_up_in_the_end(device, gpu):
    gpu.losing = 5
    assert set(timed(device, gpu, methods=["activity"])[0].samples["activity"]) == {COLD_US}
    gpu.losing = 6
    with pytest.raises(MeasurementError, match=r"recorded 74 of 75 separators in 6 attempts"):
        timed(device, gpu, methods=["activity"])


def test_a_driver_that_cannot_reset_l2_is_an_error(monkeypatch):
    fake_nvml.install(monkeypatch, missing=True)
    fake_cuda.install(monkeypatch, refusing=801)
    with pytest.raises(MeasurementError, match=r"could not reset persisting L2 lines \(.*: 801\)"):
        CudaDevice(0)
