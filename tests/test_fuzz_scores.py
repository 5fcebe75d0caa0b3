"""Damaged and hostile output of lm-eval and scores: each is read and judged, or refused in one sentence."""

import json
from pathlib import Path

import pytest
from fuzzing import answered, as_json, damaged, damaged_bytes, fuzz, garbage, values
from hypothesis import given
from hypothesis import strategies as st

from dsmla_bench.evals.accuracy_import import import_results
from dsmla_bench.evals.judging import Margins, judge
from dsmla_bench.evals.lm_eval_output import read_output
from dsmla_bench.evals.scores import TaskScores
from dsmla_bench.reports.accuracy_report import tables_of
from dsmla_bench.reports.renderings import to_text
from dsmla_bench.results import Run

REAL = Path(__file__).parent / "data" / "lm_eval"
(RESULTS,) = (REAL / "perturbed").glob("results_*.json")
TASK = "choose"
SAMPLES = next((REAL / "perturbed").glob(f"samples_{TASK}_*.jsonl"))
DOCUMENT = {key: value for key, value in json.loads(RESULTS.read_bytes()).items() if key != "pretty_env_info"}
SAMPLE_LINES = SAMPLES.read_bytes().splitlines(keepends=True)
BASELINE = read_output(REAL / "baseline", "bf16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A real folder of one task; every example writes its two files anew."""
    return tmp_path_factory.mktemp("lm_eval")


def read_and_judge(folder, results, samples):
    """The folder with these two files, read and judged against a real baseline."""
    (folder / RESULTS.name).write_bytes(results)
    (folder / SAMPLES.name).write_bytes(samples)
    with answered():
        found = read_output(folder, "fp8")
        for scores in found:
            assert TaskScores.from_json(scores.to_json()) == scores
        judge(BASELINE, found)


@fuzz(150)
@given(results=damaged(DOCUMENT) | values)
def test_results_of_wrong_values(folder, results):
    read_and_judge(folder, as_json(results), SAMPLES.read_bytes())


@fuzz(50)
@given(results=damaged_bytes(RESULTS.read_bytes()) | garbage)
def test_results_of_damaged_bytes(folder, results):
    read_and_judge(folder, results, SAMPLES.read_bytes())


@fuzz(150)
@given(lines=st.lists(damaged(json.loads(SAMPLE_LINES[0])) | damaged(json.loads(SAMPLE_LINES[1])) | values, max_size=3))
def test_samples_of_wrong_values(folder, lines):
    samples = b"".join(as_json(line) + b"\n" for line in lines) + b"".join(SAMPLE_LINES[2:])
    read_and_judge(folder, RESULTS.read_bytes(), samples)


@fuzz(50)
@given(samples=damaged_bytes(SAMPLES.read_bytes()) | garbage)
def test_samples_of_damaged_bytes(folder, samples):
    read_and_judge(folder, RESULTS.read_bytes(), samples)


@fuzz(150)
@given(scores=damaged(json.loads(BASELINE[0].to_json())) | values)
def test_scores_that_a_run_keeps(scores):
    with answered():
        found = TaskScores.from_json(json.dumps(scores))
        assert TaskScores.from_json(found.to_json()) == found
        judge(BASELINE, [found])


@fuzz(15)
@given(results=damaged(DOCUMENT))
def test_imported_results_make_a_run_with_tables(folder, results):
    """What is read can also be written, and shown."""
    (folder / RESULTS.name).write_bytes(as_json(results))
    (folder / SAMPLES.name).write_bytes(SAMPLES.read_bytes())
    with answered():
        run = import_results({"bf16": REAL / "baseline", "fp8": folder}, folder / "runs", Margins())
        to_text(tables_of(Run.load(run.path)))
