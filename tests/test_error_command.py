"""``dsmla-bench error``: what it prints, what it leaves behind, and its exit codes."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from error_runs import run_of

from dsmla_bench.results import Run


def test_the_command_prints_plain_tables_and_leaves_a_run(cli, tmp_path):
    code, out, err = cli("error", "--formats", "bf16,nvfp4_ds_mla", "--sigma", "1", "--tokens", "64", "--device", "cpu")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "normal sigma=1, 64 tokens"
    assert lines[2].startswith("format B/token s rel-L2 SNR dB max abs max rel 1 - cos bias rel-L2 clipped %")
    name, size, _seconds, *figures = lines[3].split()
    assert (name, size, figures[:7]) == ("bf16", "1152", ["0", "–", "0", "0", "0", "0", "0"])
    assert lines[-1].startswith("run: runs/")
    run = Run.load(tmp_path / lines[-1].removeprefix("run: "))
    assert len(run.table("errors")) == 6


def test_report_knows_an_error_run(cli, tmp_path):
    run = run_of(tmp_path, tokens=64, attention=True)
    code, out, _ = cli("report", run.path, "--json")
    assert (code, len(json.loads(out)["errors"])) == (0, 18)
    code, out, _ = cli("report", run.path)
    assert code == 0
    assert "attention, normal sigma=1" in out
    assert "wrote " in out
    assert "magnitude.png" in out


def test_ctrl_c_keeps_finished_data_and_is_exit_code_130(cli, monkeypatch):
    def measure_one(session, source, formats, measure=sys.modules["dsmla_bench.evals.error"].measure):
        if source.sigma != 1:
            raise KeyboardInterrupt
        measure(session, source, formats)

    monkeypatch.setattr("dsmla_bench.evals.error.measure", measure_one)
    code, out, err = cli("error", "--formats", "bf16", "--sigma", "1,2", "--tokens", "8", "--device", "cpu")
    assert (code, err) == (130, "dsmla-bench: interrupted; data that was finished is kept\n")
    assert out.startswith("normal sigma=1, 8 tokens")


def test_json_has_every_table_with_null_for_undefined(cli):
    code, out, _ = cli(
        "error", "--formats", "bf16", "--sigma", "1", "--tokens", "64", "--device", "cpu", "--readers", "--json"
    )
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert code == 0
    assert document["errors"][0]["snr_db"] is None
    assert document["errors"][0]["rel_l2"] == 0
    assert {"run", "manifest", "errors", "buckets", "tiles", "worst_tiles", "readers"} <= set(document)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "nan.npy"], "nan.npy: holds no finite value in 3 tokens"),
        (["--data", "shape.npy"], "shape.npy: the array must be [T, 576] for 512+64, found [3, 575]"),
        (["--data", "integers.npy"], "integers.npy: cannot be read as .npy (dtype int64"),
        (["--data", "empty.pt"], "empty.pt: is empty"),
        (["--data", "absent.pt"], "absent.pt: no such file"),
        (["--formats", "fp4"], "no format 'fp4'; available: "),
        (["--sigma", "one"], "--sigma must be numbers with commas between, found 'one'"),
        (["--from-model", "deepseek"], "deepseek: is no folder; --from-model takes the folder of a transformers"),
        (["--device", "tpu"], "--device must be cpu or cuda, found 'tpu'"),
        (["--data", ","], "no data named; available: normal"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2_and_leaves_no_run(cli, tmp_path, arguments, sentence):
    np.save("nan.npy", np.full((3, 576), math.nan, np.float32))
    np.save("shape.npy", np.zeros((3, 575), np.float32))
    np.save("integers.npy", np.zeros((3, 576), np.int64))
    (tmp_path / "empty.pt").touch()
    code, out, err = cli("error", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"dsmla-bench: {sentence}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_file_with_some_values_that_are_not_finite_is_measured(cli, tmp_path):
    values = np.ones((3, 576), np.float32)
    values[1, :2] = math.nan, math.inf
    np.save("some.npy", values)
    code, out, _ = cli("error", "--data", "some.npy", "--formats", "fp8", "--device", "cpu", "--attention", "--json")
    both = next(row for row in json.loads(out)["errors"] if row["part"] == "both")
    assert (code, both["non_finite_in"], both["non_finite_lost"], both["rel_l2"]) == (0, 2, 1, 0)
    assert {row["status"] for row in json.loads(out)["attention"]} == {"skipped"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_cuda_device_that_is_missing_is_exit_code_3(cli):
    code, _, err = cli("error", "--device", "cuda")
    assert (code, err) == (3, "dsmla-bench: no CUDA device here, and --device cuda asks for one\n")
