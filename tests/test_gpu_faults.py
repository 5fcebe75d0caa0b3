"""What a GPU can do to a sweep: vanish, be busy, be shared, be a slice of one, or come without NVML. No GPU needed."""

import json
import os
from pathlib import Path

import pytest
import torch
from builders import case, timed
from fake_device import LOST, NONE_THERE
from fake_nvml import install as nvml
from processes import import_path

from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.bench.nvml import driver_version, open_nvml
from dsmla_bench.bench.sweep import measure
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.results import Run
from dsmla_bench.summary import summarise

BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be reported later"


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Sweeps writes of bf16 by triton over these tokens on the fake device; the rows by tokens."""
    monkeypatch.setenv("PYTHONPATH", import_path(Path(__file__).parent))

    def run(tokens, **script):
        file = tmp_path / "script.json"
        file.write_text(json.dumps({"gone": str(tmp_path / "gone"), **script}))
        config = WorkerConfig("fake_device:FakeBench", libraries={"script": str(file)}, case_timeout_s=20)
        axes = Axes(("write",), ("bf16:raw",), ("triton",), tokens, (4,), ("ordered",))
        made = Run.create(tmp_path / "runs", {})
        list(measure(made, expand(axes, Architecture.parse("sm90")), config, 1))
        made.finish()
        return {row.tokens: row for row in Run.load(made.path).summaries()}

    return run


# Vanished or busy


def test_a_gpu_that_vanishes_fails_the_rows_that_are_left_and_loses_none(swept):
    rows = swept((1, 2, 3, 4, 5), faults={"triton 3": "gone"})
    before = list(rows).index(3)
    *timed_rows, lost = list(rows.values())[: before + 1]
    after = list(rows.values())[before + 1 :]
    assert [row.status for row in timed_rows] == ["ok"] * before
    assert (lost.status, lost.reason) == ("runtime_error", f"RuntimeError: {LOST}")
    assert len(after) == 4 - before > 1
    assert all(row.status == "runtime_error" and NONE_THERE in row.reason for row in after)


@pytest.mark.parametrize("command", [["kernels"], ["kernels", "--dry-run"], ["env"], ["selftest"]], ids=" ".join)
def test_a_gpu_that_is_busy_is_one_sentence(cli, monkeypatch, command):
    def busy(*_):
        raise RuntimeError(BUSY)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("get_device_properties", "get_device_capability", "get_device_name"):
        monkeypatch.setattr(torch.cuda, name, busy)
    code, out, err = cli(*command)
    assert (code, out) == (2, "")
    assert err == (
        "dsmla-bench: the GPU cannot be used (CUDA error: CUDA-capable device(s) is/are busy or unavailable); see with "
        "nvidia-smi whether it is there and free, or hide it with CUDA_VISIBLE_DEVICES=\n"
    )


# Shared


def test_other_processes_on_the_device_are_counted_without_the_one_that_asks(monkeypatch):
    """By number and not by name: inside a container NVML tells the numbers that processes have outside."""
    for pids, others in (([os.getpid()], 0), ([4711], 0), ([os.getpid(), 17, 17, 18], 2), ([], 0)):
        nvml(monkeypatch, processes=pids)
        assert open_nvml("0").other_processes() == others


def test_a_row_that_was_measured_beside_another_process_is_suspect(swept):
    rows = swept((1, 2), faults={"triton 2": "shared"})
    assert (rows[1].suspect, rows[2].status, rows[2].us) == (False, "ok", 10.0)
    assert rows[2].suspicion == "other processes were on the device in 1 of 1 measurements"


def test_one_process_of_several_is_enough():
    measurements = [timed(case(), 5.0, process, other_processes=count) for process, count in enumerate((0, 1, 0))]
    assert summarise(measurements).suspicion == "other processes were on the device in 1 of 3 measurements"
    assert summarise([timed(case(), 5.0, other_processes=None)]).suspect is False


# A slice, and no NVML


@pytest.mark.parametrize("known_as", ["GPU-0a1b", "MIG-0a1b"])
@pytest.mark.parametrize("given", ["0a1b", "{}"])
def test_devices_and_slices_are_found_with_and_without_the_prefix(monkeypatch, known_as, given):
    """CUDA gives the uuid of a slice as it gives that of a GPU: without the prefix that NVML wants."""
    nvml(monkeypatch, known_as, mig=(0, 0), processes=[1])
    found = open_nvml(given.format(known_as))
    assert found.describe()["mig"] is known_as.startswith("MIG-")
    assert found.other_processes() == 0


def test_a_slice_has_null_for_what_belongs_to_the_whole(monkeypatch):
    nvml(monkeypatch, "MIG-0")
    described = open_nvml("0").describe()
    assert (described.pop("mig"), described.pop("throttle_reasons")) == (True, [])
    assert set(described.values()) == {None}
    assert open_nvml("0").other_processes() is None


def test_without_nvml_a_device_is_described_all_the_same(monkeypatch):
    nvml(monkeypatch, missing=True)
    assert (open_nvml("0"), driver_version()) == (None, None)


def test_a_lost_device_answers_nothing_and_stops_nothing(monkeypatch):
    nvml(monkeypatch, lost=True, power=700_000)
    found = open_nvml("0")
    assert (found.other_processes(), found.throttle_reasons(), found.describe()["power_limit_w"]) == (None, [], None)


def test_what_nvml_knows_of_a_whole_device(monkeypatch):
    nvml(monkeypatch, mig=(1, 1), ecc=(1, 1), power=700_000, bus_bits=6144, mhz=3201, processes=[1, 2])
    described = open_nvml("0").describe()
    expected = {"mig": True, "ecc": True, "power_limit_w": 700.0}
    assert {name: described[name] for name in expected} == expected
    assert described["peak_gbps"] == pytest.approx(2 * 3201 * 6144 / 8 / 1e3)
