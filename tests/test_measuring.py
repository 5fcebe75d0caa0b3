"""The sweep on a fake device: every status, every flag, nothing lost. No GPU, and the real gate, workers and files."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsmla_bench.bench.cases import Axes, expand, shuffled
from dsmla_bench.bench.sweep import measure
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.results import Run, RunError

TESTS = Path(__file__).parent
SM90 = Architecture.parse("sm90")


@pytest.fixture(autouse=True)
def _tests_importable_by_workers(monkeypatch):
    """Workers import the fake device from this folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))


def axes(**changes) -> Axes:
    given = {
        "operations": ("write",),
        "formats": ("bf16:raw",),
        "providers": ("reference", "triton"),
        "tokens": (1, 2, 3),
        "block_sizes": (4,),
        "page_orders": ("ordered",),
    }
    return Axes(**{**given, **changes})


def script(tmp_path: Path, **content) -> WorkerConfig:
    """The configuration of a worker on the fake device with this script."""
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"log": str(tmp_path / "log"), **content}))
    return WorkerConfig("fake_device:FakeBench", libraries={"script": str(file)}, case_timeout_s=20)


def swept(tmp_path: Path, config: WorkerConfig, processes: int = 1, **changes) -> Run:
    """A finished sweep on the fake device, read back from disk."""
    run = Run.create(tmp_path / "runs", {})
    list(measure(run, expand(axes(**changes), SM90), config, processes))
    run.finish()
    return Run.load(run.path)


def by_case(run: Run) -> dict[str, dict]:
    return {f"{row['provider']} {row['tokens']}": row for row in run.records()}


def test_a_sweep_measures_every_case_in_every_process_in_an_order_of_its_own(tmp_path):
    run = swept(tmp_path, script(tmp_path, times={"triton": 5.0, "reference": 50.0}), processes=3)
    rows = by_case(run)
    assert len(rows) == 6
    assert len(run.measurements) == 18
    row = rows["triton 3"]
    assert (row["status"], row["us"], row["samples"], row["processes"]) == ("ok", 5.0, 9, 3)
    assert (row["bytes_read"], row["bytes_written"], row["bytes_differing"]) == (3 * 1160, 3 * 1152, 0)
    assert row["kcycles"] == pytest.approx(5.0 * 1.98)
    orders = [[m.case.row_id for m in run.measurements if m.process == process] for process in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert len({line.split()[0] for line in (tmp_path / "log").read_text().splitlines()}) == 3, "one process each"


def test_a_fault_costs_its_own_row_and_nothing_else(tmp_path):
    """Case B11: row 3 gets the fault's text, the rows around it are measured, in a healthy process."""
    faults = {"triton 1": "oom", "triton 2": "illegal", "triton 3": "kill", "triton 4": "hang", "triton 5": "throttle"}
    config = dataclasses.replace(script(tmp_path, faults=faults), case_timeout_s=6)
    rows = by_case(swept(tmp_path, config, tokens=(1, 2, 3, 4, 5, 6)))
    assert {name: row["status"] for name, row in rows.items() if row["status"] != "ok"} == {
        "triton 1": "oom",
        "triton 2": "runtime_error",
        "triton 3": "runtime_error",
        "triton 4": "timeout",
        "triton 5": "throttled",
    }
    assert "out of memory" in rows["triton 1"]["reason"]
    assert "illegal memory access" in rows["triton 2"]["reason"]
    assert "exit code -9" in rows["triton 3"]["reason"]
    assert "no answer within 6 s" in rows["triton 4"]["reason"]
    assert "thermal" in rows["triton 5"]["reason"]
    assert all(row["us"] is None for row in rows.values() if row["status"] != "ok"), "no error becomes a number"


def test_figures_that_may_be_wrong_are_flagged_and_keep_their_number(tmp_path):
    disagree = {
        "triton": {"activity": [10.0] * 5, "graph": [12.0] * 5},
        "reference": {"activity": [9.8], "graph": [10.3]},
    }
    rows = by_case(swept(tmp_path, script(tmp_path, samples=disagree), tokens=(2,)))
    assert (rows["triton 2"]["suspect"], rows["triton 2"]["us"], rows["triton 2"]["us_check"]) == (True, 10.0, 12.0)
    assert "second method gives 12 µs" in rows["triton 2"]["suspicion"]
    assert rows["reference 2"]["suspect"] is False, "0.5 µs apart is within the floor of 0.7 µs"


def test_a_cold_figure_beyond_the_memorys_peak_is_suspect(tmp_path):
    """Case B1: 4 096 tokens of fp8_ds_mla cannot be moved in under 1.54 µs by 4.8 TB/s; hot, they may be."""
    config = script(tmp_path, times={"reference": 1.5})
    given = {"operations": ("gather",), "formats": ("fp8_ds_mla:pow2",), "providers": ("reference",), "tokens": (4096,)}
    run = swept(tmp_path, config, l2_states=("cold", "hot"), block_sizes=(64,), **given)
    cold, hot = sorted(run.records(), key=lambda row: row["l2_state"])
    assert cold["bytes_read"] + cold["bytes_written"] == 4096 * (656 + 1152) + 4 * (64 + 8), (
        "rows, and 64 table entries and 8 starts"
    )
    assert cold["suspect"]
    assert "more than the memory's peak of 4800" in cold["suspicion"]
    assert not hot["suspect"]


@pytest.mark.parametrize(
    ("us", "status", "launch_bound"),
    [(0.0, "unresolved", None), (0.0005, "unresolved", None), (1.3, "ok", True), (1.5, "ok", False)],
)
def test_times_near_the_floor_and_below_the_clocks_resolution(tmp_path, us, status, launch_bound):
    """Cases B3 and B6: 0 is no time; under twice the floor of 0.7 µs nothing is said about bandwidth."""
    samples = {"triton": {"activity": [us] * 4, "graph": [us] * 4}}
    row = by_case(swept(tmp_path, script(tmp_path, samples=samples), tokens=(2,), providers=("triton",)))["triton 2"]
    assert (row["status"], row["launch_bound"]) == (status, launch_bound)
    assert (row["bound_share"] is None) == (status != "ok" or launch_bound is True)
    if status == "unresolved":
        assert row["us"] is row["gbps"] is None
        assert "clock's resolution" in row["reason"]


def test_the_first_call_never_enters_the_time(tmp_path):
    """Case B5: compile and load time have a field of their own; the median ignores what a stray sample says."""
    samples = {"triton": {"activity": [1238.7197, 0.199, 0.138, 0.127, 0.125], "graph": [0.138]}}
    row = by_case(swept(tmp_path, script(tmp_path, samples=samples), tokens=(2,), providers=("triton",)))["triton 2"]
    assert row["us"] == 0.138
    assert row["first_call_us"] > 0


def test_data_and_seed_are_in_every_row_and_inputs_are_never_zeros(tmp_path):
    """Case B9."""
    rows = swept(tmp_path, dataclasses.replace(script(tmp_path), seed=7), tokens=(2,)).records()
    assert {(row["data"], row["seed"]) for row in rows} == {("normal", 7)}


def test_a_missing_method_is_an_error_not_a_fallback(tmp_path):
    samples = {"triton": {"graph": [10.0]}}
    row = by_case(swept(tmp_path, script(tmp_path, samples=samples), tokens=(2,), providers=("triton",)))["triton 2"]
    assert row["status"] == "runtime_error"
    assert "activity" in row["reason"]


SWEEP = """
import sys
from pathlib import Path
from dsmla_bench.bench.sweep import measure
from dsmla_bench.results import Run
from test_measuring import SM90, axes, expand, script
tmp = Path(sys.argv[1])
run = Run.resume(sys.argv[2], {}) if len(sys.argv) > 2 else Run.create(tmp / "runs", {"config": {}})
if len(sys.argv) == 2:
    print(run.path, flush=True)
for _ in measure(run, expand(axes(tokens=range(1, 11)), SM90), script(tmp), 1):
    pass
"""


def sweep_process(tmp_path: Path, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path), *arguments], stdout=subprocess.PIPE, text=True)


def test_a_kill_loses_at_most_one_row_and_resume_measures_only_the_rest(tmp_path):
    """Case D3: SIGKILL at ten random moments; what was answered is on disk, nothing is measured twice."""
    wanted = {case.row_id for case in expand(axes(tokens=range(1, 11)), SM90)}
    process = sweep_process(tmp_path)
    path = process.stdout.readline().strip()
    log = tmp_path / "log"
    moments = random.Random(0)
    for kill in range(10):
        while process.poll() is None and (len(log.read_text().splitlines()) if log.exists() else 0) < kill + 2:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        begun = len(log.read_text().splitlines())
        kept = len(Run.load(path).measurements)
        assert begun - kept <= kill + 1, "each kill may cost the row that was being measured, no more"
        process = sweep_process(tmp_path, path)
    assert process.wait(timeout=120) == 0
    run = Run.load(path)
    assert sorted(m.case.row_id for m in run.measurements) == sorted(wanted)


def test_a_cut_last_line_is_set_aside_and_measured_again(tmp_path):
    run = swept(tmp_path, script(tmp_path))
    file = run.path / "rows.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join(whole[:-1]) + whole[-1][:40])
    with pytest.warns(UserWarning, match=rf"rows.jsonl:{len(whole)}: the last line is cut short"):
        resumed = Run.resume(run.path, {})
    assert (run.path / "rows.jsonl.cut").read_text() == whole[-1][:40] + "\n"
    list(measure(resumed, expand(axes(), SM90), script(tmp_path), 1))
    assert sorted(m.case.row_id for m in Run.load(run.path).measurements) == sorted(
        m.case.row_id for m in run.measurements
    )


def test_another_configuration_is_not_resumed_and_the_field_is_named(tmp_path):
    run = Run.create(tmp_path, {"config": {"tokens": [1, 2], "seed": 0}})
    run.finish()
    assert Run.resume(run.path, {"tokens": (1, 2), "seed": 0}).run_id == run.run_id
    with pytest.raises(RunError, match=r"seed is 1 now and was 0; start a new run"):
        Run.resume(run.path, {"tokens": [1, 2], "seed": 1})


def test_another_device_or_build_is_not_resumed(tmp_path):
    run = Run.create(tmp_path, {"config": {}, "identity": {"devices": {"sm90": "GPU-1"}, "libraries": {"vllm": "ab"}}})
    run.finish()
    with pytest.raises(RunError, match=r"devices is \{'sm90': 'GPU-2'\} now and was \{'sm90': 'GPU-1'\}"):
        Run.resume(run.path, {}, {"devices": {"sm90": "GPU-2"}, "libraries": {"vllm": "ab"}})


def test_a_run_that_is_being_measured_is_not_resumed(tmp_path):
    run = Run.create(tmp_path, {"config": {}})
    with pytest.raises(RunError, match="another process is measuring into this run"):
        Run.resume(run.path, {})


def test_runs_of_one_moment_do_not_meet(tmp_path):
    assert len({Run.create(tmp_path, {}).path for _ in range(20)}) == 20


def test_cases_that_share_inputs_stay_together_in_a_shuffled_order():
    cases = expand(axes(tokens=(1, 2, 3, 4), providers=("reference", "triton", "vllm")), SM90)
    order = shuffled(cases, 3)
    assert sorted(map(str, order)) == sorted(map(str, cases))
    assert order != cases
    tokens = [case.tokens for case in order]
    assert all(len(set(tokens[start : start + 3])) == 1 for start in range(0, len(tokens), 3))
    assert shuffled(cases, 3) == order != shuffled(cases, 4)
