"""Faults that people who measure caches have reported in public, where no other test holds the exact right answer.

``tests/README.md`` lists all such cases and names the tests of each.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from builders import case, run_of, timed
from test_measuring import by_case, script, swept

from dsmla_bench.bench import graphs
from dsmla_bench.evals.accuracy_import import import_results
from dsmla_bench.evals.codec import Codec
from dsmla_bench.evals.error import execute
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.evals.judging import Margins
from dsmla_bench.evals.paired_statistics import standard_error, totals
from dsmla_bench.kernels.formats import Geometry, get_format
from dsmla_bench.kernels.operations.indexer import quantize_index
from dsmla_bench.reports.accuracy_tables import accuracy_tables
from dsmla_bench.reports.comparison import compare
from dsmla_bench.reports.error_report import tables_of
from dsmla_bench.reports.kernel_report import run_tables
from dsmla_bench.reports.measures import kernel_measures
from dsmla_bench.reports.renderings import to_csv, to_text
from dsmla_bench.reports.tables import UNDEFINED
from dsmla_bench.results import Run, RunError

CPU = torch.device("cpu")


# Bytes


@pytest.mark.parametrize(("revision", "clipped"), [("rn", 8), ("up", 0)])
def test_values_that_a_scale_rounded_down_cannot_reach_are_counted_as_clipped(revision, clipped):
    """Case A1: of a tile of 17, 8 and 3 / 1024, the eight values of 17 / 1024 are beyond 6 · 2^-9."""
    values = torch.zeros(1, 576, dtype=torch.bfloat16)
    values[0, :16] = torch.tensor([17.0] * 4 + [-17.0] * 4 + [8.0] * 4 + [3.0] * 4) / 1024
    codec = Codec(get_format(f"nvfp4_ds_mla:{revision}"), Geometry(), CPU)
    assert int(codec(values)[1].sum()) == clipped


def test_the_indexer_and_the_latent_have_floors_of_their_own():
    """Case A5: 2e-5 is 6A under the indexer's floor of 2^-22 and 22 under the latent's of 2^-13."""
    vectors = torch.zeros(2, 128)
    vectors[1, 0] = 2e-5
    codes, scales = quantize_index(vectors)
    assert scales.flatten().tolist() == [2.0**-22] * 2
    assert scales.view(torch.uint8)[0].tolist() == [0x00, 0x00, 0x80, 0x34]
    assert (int(codes[0, 0]), int(codes[1, 0])) == (0x00, 0x6A)
    latent = torch.zeros(1, 512)
    latent[0, 0] = 2e-5
    row = get_format("fp8_ds_mla:pow2").quantize(latent.bfloat16(), torch.zeros(1, 64).bfloat16(), None)[0]
    assert (row[512:516].tolist(), int(row[0])) == ([0x00, 0x00, 0x00, 0x39], 0x22)


# Times


def test_a_clock_that_always_says_zero_ends_in_words(tmp_path):
    """Case B3: no division by it, bounded launches, and a report without inf, NaN or a time of zero."""
    assert graphs.launches_for(0.0) == (graphs.SHORT_LAUNCHES, graphs.LONG_LAUNCHES)
    assert graphs.slope_us(0.0, graphs.SHORT_LAUNCHES, 0.0, graphs.LONG_LAUNCHES) == 0.0
    assert graphs.quantum_us([0.0] * 15) is None
    run = run_of(tmp_path, [timed(case(), [0.0] * 15, quantum_us=None), timed(case(tokens=8), 5.0)])
    row = run.records()[0]
    assert (row["status"], row["us"], row["gbps"], row["kcycles"]) == ("unresolved", None, None, None)
    tables = run_tables(run, run.rows())
    text = to_text(tables)
    line = next(line for line in text.splitlines() if line.split()[:1] == ["128"])
    assert line.split() == ["128", "unresolved", "–", "–"]
    assert not {"inf", "nan", "0.00"} & set((text + to_csv(run.rows())).lower().replace(",", " ").split())


def test_formats_are_not_weighed_by_launch_bound_times(tmp_path):
    """Case B6: of 1.3 and 1.2 µs around an empty kernel of 0.73 µs, the launch is most of what was measured."""
    for factor, weighed in ((1, {}), (10, {"bf16": 13.0, "fp8": 12.0})):
        run = run_of(tmp_path, [timed(case(format=name), us * factor) for name, us in (("bf16", 1.3), ("fp8", 1.2))])
        (time,) = [
            found for found in kernel_measures(run, {"bf16": "raw", "fp8": "per_tensor"}) if found.subject == "time"
        ]
        assert (time.values, [cell.endswith("*") for cell in time.cells.values()]) == (weighed, [factor == 1] * 2)


def test_runs_on_zeros_and_on_random_data_are_not_compared(tmp_path):
    """Case B9."""
    zeros, normal = (run_of(tmp_path, [timed(case(data=data), 5.0)]) for data in ("zeros", "normal"))
    with pytest.raises(RunError, match="no row in common"):
        compare(zeros, normal)


def test_a_fault_is_never_laid_to_the_case_after_it(tmp_path):
    """Case B11: six cases, the third accesses what it must not: a healthy process takes over from there."""
    config = dataclasses.replace(script(tmp_path, faults={"triton 3": "illegal"}), seed=0)
    run = swept(tmp_path, config, tokens=range(1, 7), providers=("triton",))
    rows = by_case(run)
    assert {name: row["status"] for name, row in rows.items()} == {
        **{f"triton {tokens}": "ok" for tokens in (1, 2, 4, 5, 6)},
        "triton 3": "runtime_error",
    }
    assert "illegal memory access" in rows["triton 3"]["reason"]
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    faulty = next(number for number, (_, _, row_id) in enumerate(log) if row_id == rows["triton 3"]["row_id"])
    workers = [process for process, _, _ in log]
    assert len(set(workers[: faulty + 1])) == 1
    assert workers[faulty + 1 :]
    assert not set(workers[faulty + 1 :]) & set(workers[: faulty + 1])


# Scores


def lm_eval_folder(folder, **tasks):
    """A folder as lm-eval writes it, without samples."""
    folder.mkdir()
    results = {"results": tasks, "higher_is_better": {task: {"exact_match": True} for task in tasks}}
    (folder / "results_2026-01-01T00-00-00.json").write_text(json.dumps(results))
    return folder


def test_a_standard_error_that_is_not_available_is_a_dash_and_costs_no_other_row(tmp_path):
    """Case C2: "N/A" of one document, and of a score of 0.057, beside a whole row."""
    tasks = {
        "one": {"exact_match,strict-match": 1.0, "exact_match_stderr,strict-match": "N/A", "sample_len": 1},
        "low": {"exact_match,strict-match": 0.057, "exact_match_stderr,strict-match": "N/A"},
        "whole": {"exact_match,none": 0.5, "exact_match_stderr,none": 0.05, "sample_len": 101},
    }
    folders = {name: lm_eval_folder(tmp_path / name, **tasks) for name in ("bf16", "fp8")}
    run = import_results(folders, tmp_path / "runs", Margins())
    scores = run.table("scores").drop_duplicates("task").set_index("task")["stderr"]
    assert scores.dtype == "Float64"
    assert scores.isna().to_dict() == {"one": True, "low": True, "whole": False}
    assert scores["whole"] == 0.05
    lines = [line.split() for line in to_text(accuracy_tables(run.table("judged"))).splitlines()]
    assert {line[0] for line in lines if line and line[0] in tasks and UNDEFINED in line} >= {"one", "low"}


def test_the_standard_error_of_paired_answers_is_that_of_their_differences():
    """Case C5: 14 lost and 3 gained of 200 have a standard error of 2.03 points, not the 4.06 of unpaired scores."""
    differences = np.array([-1.0] * 14 + [1.0] * 3 + [0.0] * 183)
    paired = standard_error(totals(differences, np.ones(200), [None] * 200))
    assert paired == pytest.approx(0.02030, abs=5e-6)
    assert math.sqrt((0.82 * 0.18 + 0.765 * 0.235) / 199) == pytest.approx(0.0406, abs=1e-4)


def test_the_report_says_what_a_scale_saturates_and_where_it_comes_from(tmp_path):
    """Case C11: of 600, 450, 100, 1 and 0.01 the scale of 1 saturates two in five, a calibrated one none."""
    file = tmp_path / "latents.npy"
    np.save(file, np.tile(np.float32([600.0, 450.0, 100.0, 1.0, 0.01]), 576).reshape(5, 576))
    plan = ErrorPlan(formats=("fp8",), data=(str(file),), scales=("default", "amax"), tokens=5)
    run = plan.create_run(tmp_path / "runs")
    list(execute(plan, run))
    errors = Run.load(run.path).table("errors")
    both = errors[errors["part"] == "both"].set_index("scale_origin")
    assert (both["clipped"] / both["values"]).to_dict() == {"default": 0.4, "amax": 0.0}
    text = to_text(tables_of(run))
    assert "default 1.0" in text
    assert "amax 1.34" in text


# Runs


def test_a_run_that_was_killed_in_its_eighth_row_keeps_seven_and_is_never_truncated(tmp_path):
    """Case D3: the line that was cut at byte 40 is named and set aside, and whoever has the file open keeps it."""
    whole = run_of(tmp_path, [timed(case(tokens=tokens), 5.0) for tokens in range(1, 11)])
    file = whole.path / "rows.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:7]) + lines[7][:40])
    with pytest.warns(UserWarning, match=r"rows\.jsonl:8: the last line is cut short"):
        assert [m.case.tokens for m in Run.load(whole.path).measurements] == list(range(1, 8))
    with open(file, "rb") as reader:
        with pytest.warns(UserWarning, match="set aside"):
            resumed = Run.resume(whole.path, {})
        assert reader.read() == b"".join(lines[:7]) + lines[7][:40]
    assert file.read_bytes() == b"".join(lines[:7])
    for measurement in whole.measurements[7:]:
        resumed.append(measurement)
    resumed.finish()
    assert [m.case.tokens for m in Run.load(whole.path).measurements] == list(range(1, 11))
