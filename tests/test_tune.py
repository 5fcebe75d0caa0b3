"""Tuning: every configuration is right to the byte, and what is measured says which one a table should hold."""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from builders import case as case_of
from builders import run_of, timed

from dsmla_bench.bench import gate, manifest
from dsmla_bench.bench.cases import shape_of
from dsmla_bench.bench.compile_ahead import compile_ahead
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.tune import PROVIDER, TunePlan, candidates, choices, launch_of, tunable
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.cli import main
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.kernels.operations import Shape, all_operations, get_operation
from dsmla_bench.kernels.operations.tuning import TOKEN_BLOCKS
from dsmla_bench.reports.tuning import entries, entry_lines, tuned_cases

SM90 = Architecture.parse("sm90")


def sized(operation, tokens, fmt="fp8_ds_mla", **changes):
    """A case of an operation with its own axes at their first values."""
    axes = {name: values[0] for name, values in get_operation(operation).axes.items()}
    return case_of(operation, fmt, tokens=tokens, **{**axes, **changes})


# Candidates


@pytest.mark.parametrize("operation", tunable())
@pytest.mark.parametrize("fmt", ["fp8", "nvfp4_ds_mla"])
def test_what_the_tables_hold_is_a_candidate_at_every_size(operation, fmt):
    for tokens in get_operation(operation).tokens:
        if get_operation(operation).covers(get_format(fmt)):
            in_turn, present = choices(sized(operation, tokens, fmt))
            assert present in in_turn
            assert present.provider != PROVIDER, f"the table's choice at {tokens} tokens is no candidate"


@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
def test_so_is_that_of_decode_for_many_heads(heads, arch):
    for tokens in get_operation("decode").tokens:
        assert choices(sized("decode", tokens, heads=heads, arch=arch))[1].provider != PROVIDER


def test_a_choice_that_is_no_candidate_is_measured_too(monkeypatch):
    operation = get_operation("write")
    tuning = dataclasses.replace(operation.tuning, candidates=lambda shape, arch: TOKEN_BLOCKS[-1:])
    operation = dataclasses.replace(operation, tuning=tuning)
    monkeypatch.setattr("dsmla_bench.bench.tune.operation_of", lambda case: operation)
    in_turn, present = choices(sized("write", 1))
    assert [case.provider for case in in_turn] == ["block_tokens=16 num_warps=4", PROVIDER]
    assert present.provider == PROVIDER


def test_candidates_that_come_to_one_launch_are_measured_once():
    """One query of 16 heads leaves the chip empty, however many programs a configuration would fill it with."""
    names = [case.provider for case in choices(sized("decode", 1))[0]]
    assert len(names) < len(candidates(sized("decode", 1)))
    assert len({name.rpartition(" ")[0] for name in names}) == len(names)


@pytest.mark.parametrize("operation", ["write", "gather", "fused_norm_rope", "fused_q"])
def test_every_configuration_writes_the_bytes_of_the_reference(operation, device):
    operation, fmt = get_operation(operation), get_format("fp8")
    heads = {"heads": 3} if "heads" in operation.axes else {}
    shape = Shape(3, requests=2, block_size=4, shuffled=True, **heads)
    inputs = operation.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(0))
    outputs = operation.outputs(inputs)
    expected = gate.outputs_of(operation.reference(fmt, inputs), outputs)
    for configuration in operation.tuning.candidates(shape, 90):
        launch = operation.tuning.plan(fmt, inputs, 0 if device.type == "cpu" else 90, configuration)
        found = gate.compare(operation, gate.outputs_of(launch.run, outputs), expected)
        assert found.reason is None, configuration


@pytest.mark.gpu
def test_what_is_compiled_ahead_is_what_is_launched(device, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    case = choices(sized("write", 8))[1]
    compile_ahead([case], launch_of, device.index, 1)
    compiled = sorted(tmp_path.rglob("*.cubin"))
    assert compiled
    operation, fmt = get_operation("write"), get_format("fp8_ds_mla")
    launch = operation.plan(fmt, operation.make_inputs(fmt, shape_of(case), device, torch.Generator(device)), 90)
    launch.kernel.device_caches.clear()
    launch.run()
    assert sorted(tmp_path.rglob("*.cubin")) == compiled


def test_the_host_time_example_calls_the_public_function_of_every_operation(device, monkeypatch):
    file = Path(__file__).parents[1] / "examples" / "host_time.py"
    spec = importlib.util.spec_from_file_location("host_time", file)
    host_time = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host_time)
    assert list(host_time.PUBLIC) == [operation.name for operation in all_operations()]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("write", "gather"):
        assert all(host_time.host_us(call, 1, 1) > 0 for call in host_time.calls(name, device))


# Judgement


def rows_of(tmp_path, times, present="b"):
    """The cases of a tuning run of writes: format → configuration → µs."""
    measured = [
        timed(case_of(format=fmt, provider=name, tokens=8192), us)
        for fmt, by_name in times.items()
        for name, us in by_name.items()
    ]
    chosen = {m.case.row_id for m in measured if m.case.provider == present}
    return tuned_cases(run_of(tmp_path, measured).summaries(), chosen)


def test_a_table_holds_while_no_format_loses_more_than_two_percent(tmp_path):
    (entry,) = entries(rows_of(tmp_path, {"bf16": {"a": 10.0, "b": 10.1}, "fp8": {"a": 8.1, "b": 8.0}}))
    assert (entry.now, entry.wanted) == ("b", "b")
    assert entry.slower == pytest.approx({"a": 0.0125, "b": 0.01})


def test_otherwise_it_should_hold_what_the_worst_format_loses_least_by(tmp_path):
    times = {"bf16": {"a": 10.0, "b": 11.0, "c": 10.3}, "fp8": {"a": 9.0, "b": 8.0, "c": 8.2}}
    (entry,) = entries(rows_of(tmp_path, times))
    assert (entry.now, entry.wanted) == ("b", "c")
    assert entry_lines([entry])[1] == ["write sm90", "8192 tokens", "bf16, fp8", "b", "10.0 %", "c", "3.0 %"]


def test_a_configuration_that_fails_in_one_format_is_no_choice_for_the_table(tmp_path):
    (entry,) = entries(rows_of(tmp_path, {"bf16": {"a": 10.0, "b": 11.0}, "fp8": {"b": 9.0}}))
    assert entry.wanted == "b"


def test_formats_to_which_the_table_gives_different_configurations_are_judged_apart(tmp_path):
    measured = [timed(case_of(format=fmt, provider=name), 5.0) for fmt in ("bf16", "fp8") for name in "ab"]
    chosen = {m.case.row_id for m in measured if (m.case.format, m.case.provider) in (("bf16", "a"), ("fp8", "b"))}
    found = entries(tuned_cases(run_of(tmp_path, measured).summaries(), chosen))
    assert [(entry.now, len(entry.cases)) for entry in found] == [("a", 1), ("b", 1)]


# The command


@pytest.fixture
def tune(tmp_path, monkeypatch, capfd):
    """Runs ``dsmla-bench tune`` on a fake GPU with this script; exit code, standard output and error."""

    def run(*arguments, **script):
        file = tmp_path / "script.json"
        file.write_text(json.dumps(script))
        monkeypatch.setattr(manifest, "find_devices", lambda: [Gpu(0, "Fake GPU", "GPU-0", "sm90")])
        monkeypatch.setattr(manifest, "describe_device", lambda index: {"name": "Fake GPU"})
        config = WorkerConfig("fake_tuning:FakeTuneBench", libraries={"script": str(file)}, methods=("activity",))
        monkeypatch.setattr(TunePlan, "_worker_config", config)
        monkeypatch.setattr("dsmla_bench.bench.tune.compile_ahead", lambda cases, *where: None)
        monkeypatch.setattr(sys, "argv", ["dsmla-bench", "tune", "--out", str(tmp_path / "tune"), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


AXES = ("--ops", "write", "--formats", "bf16,fp8", "--tokens", "2")


def test_the_command_measures_what_can_run_and_prints_the_entry_to_put_into_the_table(tune):
    code, out, _ = tune(
        *AXES, times={"block_tokens=2 num_warps=1": 9.0}, faults={"block_tokens=8 num_warps=2 2": "illegal"}
    )
    lines = out.splitlines()
    (bf16,) = [number for number, line in enumerate(lines) if line.startswith("write bf16:raw, 2 tokens")]
    assert code == 0
    assert lines[bf16 + 2].split()[:3] == ["block_tokens=2", "num_warps=1", "9.00"]
    assert out.count("runtime_error: RuntimeError: CUDA error: an illegal memory access") == 2
    assert out.count("in the table") == 3, "once per format and once as a heading"
    assert "block_tokens=1 num_warps=2  11.1 %  block_tokens=2 num_warps=1   0.0 %" in out


def test_json_says_which_entry_holds_and_a_run_keeps_every_sample(tune, tmp_path):
    code, out, _ = tune(*AXES, "--json", times={"block_tokens=1 num_warps=2": 9.9})
    document = json.loads(out)
    (entry,) = document["entries"]
    assert (code, entry["holds"], entry["present"]) == (0, True, "block_tokens=1 num_warps=2")
    assert (entry["formats"], entry["present_slower"]) == (["bf16:raw", "fp8:per_tensor"], 0.0)
    assert len(document["rows"]) == 2 * len(TOKEN_BLOCKS)
    assert len(document["manifest"]["present"]) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_device_nothing_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dsmla-bench", "tune", "--out", str(tmp_path / "tune")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, "no CUDA device here" in capsys.readouterr().err) == (3, True)
    assert not (tmp_path / "tune").exists()
