"""Paired measuring: two sides take turns, nothing is measured twice, and what is found reaches the exit code."""

import importlib.util
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from builders import case
from processes import compiling_environment, import_path, run_command

from dsmla_bench.bench import gate
from dsmla_bench.bench.ab import ANSWER
from dsmla_bench.cli import main
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import default_formats
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.reports.comparison import compare
from dsmla_bench.results import Run

TESTS = Path(__file__).parent
FAKE = TESTS / "fake_side.py"
SM90 = Architecture.parse("sm90")


@pytest.fixture
def ab(tmp_path, monkeypatch, capfd):
    """Runs ``dsmla-bench ab`` between two fake sides with these options; exit code, standard output and error."""
    monkeypatch.setenv("PYTHONPATH", import_path(TESTS))
    start = f"{shlex.quote(sys.executable)} {FAKE} --log {tmp_path / 'log'}"

    def run(*arguments, base="", head=""):
        sides = ["--base", f"{start} {base}", "--head", f"{start} {head}"]
        command = ["dsmla-bench", "ab", *sides, "--out", tmp_path / "runs", *arguments]
        monkeypatch.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


def turns(folder):
    return (folder / "log").read_text().splitlines()


def runs_of(folder):
    """Base and head of the only folder that ab made."""
    (made,) = (folder / "runs").iterdir()
    return [Run.load(next((made / side).iterdir())) for side in ("base", "head")], made


def test_a_planted_slow_row_is_found_confirmed_by_more_pairs_and_nothing_else_is(ab):
    code, out, err = ab("--json", head="--factor 1.03 --seed-of-noise 1")
    found = json.loads(out)
    assert (code, found["regression"], found["counts"]) == (1, True, {"slow": 1, "same": 1})
    slow, same = found["judged"]
    assert (slow["subject"].split()[3], slow["processes"], same["processes"]) == ("65536", 24, 12)
    assert 0.02 < slow["lo"] < slow["change"] < slow["hi"] < 0.04
    assert "1 rows get 12 more pairs" in err


def test_sides_take_turns_in_the_order_abba_and_later_pairs_measure_flagged_rows_only(ab, tmp_path):
    ab("--pairs", "8", "--more-pairs", "2", head="--factor 1.05 --seed-of-noise 1")
    order = [line.split() for line in turns(tmp_path)]
    assert [side for side, _, _ in order] == ["base", "head", "head", "base"] * 5
    assert [int(process) for _, process, _ in order] == [process for process in range(10) for _ in "ab"]
    assert [rows for _, _, rows in order] == ["all"] * 16 + ["1"] * 4
    (base, head), made = runs_of(tmp_path)
    assert base.manifest["paired"] == head.manifest["paired"] == made.name
    assert compare(base, head).paired


def test_an_a_a_finds_nothing_and_ends_with_0(ab, tmp_path):
    code, out, _ = ab(head="--seed-of-noise 1")
    assert (code, out.partition("\n")[0]) == (0, "No regression: 2 same.")
    assert len(turns(tmp_path)) == 24, "no second look"


def test_an_ambiguous_row_gets_more_pairs_once_and_stays_what_it_is(ab, tmp_path):
    code, out, _ = ab("--more-pairs", "1", base="--rows noisy", head="--rows noisy --seed-of-noise 5")
    assert (code, out.partition("\n")[0], len(turns(tmp_path))) == (0, "Nothing settled: 1 ambiguous.", 26)


def test_options_after_the_dashes_reach_both_sides_and_others_one(ab, tmp_path):
    ab("--pairs", "1", "--more-pairs", "0", "--head-options", "--vllm-library '/x/a new.so'", "--", "--ops", "gather")
    (base, head), _ = runs_of(tmp_path)
    assert base.manifest["config"]["others"] == ["--methods", "activity", "--ops", "gather"]
    assert head.manifest["config"]["others"] == [
        "--methods",
        "activity",
        "--ops",
        "gather",
        "--vllm-library",
        "/x/a new.so",
    ]


def test_a_side_that_dies_loses_its_turn_only_and_resume_measures_what_is_missing(ab, tmp_path):
    """Case D3."""
    code, _, err = ab(head="--die-at 5")
    assert code == 2
    assert "--head ended with exit code 9 before it was done" in err
    _, made = runs_of(tmp_path)
    code, _, err = ab("--resume", made)
    assert code == 0, err
    (base, head), _ = runs_of(tmp_path)
    for run in (base, head):
        measured = [(m.case, m.process) for m in run.measurements]
        assert len(measured) == len(set(measured)) == 24, "nothing is missing, nothing was measured twice"


def test_ctrl_c_keeps_finished_rows_and_ends_with_130(tmp_path):
    """Case D3."""
    side = f"{shlex.quote(sys.executable)} {FAKE} --log {tmp_path / 'log'} --nap 0.2"
    command = [
        sys.executable,
        "-m",
        "dsmla_bench",
        "ab",
        "--base",
        side,
        "--head",
        side,
        "--out",
        str(tmp_path / "runs"),
    ]
    process = subprocess.Popen(command, env=compiling_environment(TESTS), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").exists() or len(turns(tmp_path)) < 4:
        assert time.monotonic() < deadline, "the sides never started"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    (base, head), made = runs_of(tmp_path)
    assert f"go on with --resume {made}" in process.stderr.read()
    for run in (base, head):
        assert len(run.measurements) >= 2
        assert run.manifest["interrupted"] is True


def test_a_machine_without_a_device_is_exit_code_3_and_a_command_that_is_none_2(ab):
    code, _, err = ab(base="--no-device")
    assert (code, err) == (3, "dsmla-bench: no GPU of the architecture here; ab times both sides and needs one\n")
    code, _, err = ab("--base", "/no/such/command")
    assert (code, "--base /no/such/command: cannot be started" in err) == (2, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_kernels_as_a_side_wants_a_device_before_it_makes_a_run(tmp_path):
    done = run_command("kernels", "--arch", "sm90", "--paired", "x", "--out", tmp_path / "runs")
    assert (done.returncode, done.stderr) == (3, ""), "ab says it, once for both sides"
    assert not (tmp_path / "runs").exists()


FAKE_GPU = """
import sys
from dsmla_bench.bench import manifest
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.plan import SweepPlan
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.cli import main

manifest.find_devices = lambda: [Gpu(0, "Fake GPU", "GPU-0", "sm90")]
manifest.describe_device = lambda index: {"name": "Fake GPU"}
SweepPlan._worker_config = WorkerConfig("fake_device:FakeBench", libraries={"script": sys.argv.pop(1)})
main()
"""


def test_kernels_as_a_side_measures_the_process_and_rows_asked_for_and_no_row_twice(tmp_path):
    script = tmp_path / "script.json"
    script.write_text("{}")
    axes = ["--formats", "bf16", "--ops", "write", "--providers", "triton", "--tokens", "1,2", "--block-sizes", "4"]
    where = ["--arch", "sm90", "--page-orders", "ordered", "--out", tmp_path / "runs", "--paired", "ab-1"]
    command = [sys.executable, "-c", FAKE_GPU, script, "kernels", *axes, *where]
    two = case("write", "bf16", tokens=2, block_size=4).row_id
    asked = [{"process": 3, "rows": [two]}, {"process": 3, "rows": None}, {"process": 3, "rows": None}]
    done = subprocess.run(
        list(map(str, command)),
        input="".join(json.dumps(turn) + "\n" for turn in asked),
        env=compiling_environment(TESTS),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ready, *answers = [json.loads(line.removeprefix(ANSWER)) for line in done.stdout.splitlines()]
    assert answers == [{"measured": 1}, {"measured": 1}, {"measured": 0}]
    run = Run.load(ready["run"])
    assert [(m.case.tokens, m.process, m.status) for m in run.measurements] == [(2, 3, "ok"), (1, 3, "ok")]
    assert (run.manifest["paired"], run.manifest["interrupted"], run.has_table("rows")) == ("ab-1", False, True)


@pytest.mark.parametrize("planted", ["0", "1"])
@pytest.mark.parametrize("fmt", default_formats(), ids=lambda fmt: fmt.name)
def test_the_planted_slow_down_does_extra_work_and_writes_the_same_bytes(fmt, planted, device, monkeypatch):
    monkeypatch.setenv("PLANTED_SLOWDOWN", planted)
    file = TESTS.parent / "examples" / "planted_slowdown" / "planted_slowdown.py"
    spec = importlib.util.spec_from_file_location("planted_slowdown", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    operation, provider = get_operation("write"), module.PROVIDERS[0]({})
    inputs = operation.make_inputs(fmt, Shape(64, block_size=16), device, torch.Generator(device).manual_seed(0))
    outputs = operation.outputs(inputs)
    expected = gate.outputs_of(operation.reference(fmt, inputs), outputs)
    call = provider.bind(operation, fmt, inputs, SM90)
    assert gate.compare(operation, gate.outputs_of(call, outputs), expected).bytes_differing == 0
    assert len(module.with_extra_work(inputs).slot_mapping) == (66 if planted == "1" else 64)
    assert provider.why_not(get_operation("gather"), fmt, SM90)
