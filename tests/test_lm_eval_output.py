"""lm-eval's own output, read: real folders that its command wrote (tests/data/lm_eval/make.py), and hostile ones."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from dsmla_bench.evals import lm_eval_output
from dsmla_bench.evals.judging import judge
from dsmla_bench.evals.lm_eval_output import read_output
from dsmla_bench.evals.lm_eval_scores import task_scores

REAL = Path(__file__).parent / "data" / "lm_eval"
DATE = "2026-01-01T00-00-00.000000"


@pytest.fixture
def folder(tmp_path):
    """A copy of a real folder, to be spoilt."""
    return shutil.copytree(REAL / "baseline", tmp_path / "baseline")


def the_file(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def changed(folder, change):
    """The folder with ``change`` applied to its results."""
    file = the_file(folder, "results_*.json")
    results = json.loads(file.read_text())
    change(results)
    file.write_text(json.dumps(results))
    return folder


def results_of(rows, **sections):
    return {
        "results": rows,
        "higher_is_better": {task: {"exact_match": True, "acc": True} for task in rows},
        **sections,
    }


def by_metric(scores):
    return {(task.task, found.filter, found.metric): found for task in scores for found in task.aggregates}


def test_a_real_folder_gives_every_task_filter_and_metric():
    """Case C8: a task with two filters keeps both. The group of two tasks is left out."""
    scores = read_output(REAL / "baseline", "bf16")
    assert [task.task for task in scores] == ["choose", "spell", "prose", "animals_a", "animals_b"]
    found = by_metric(scores)
    assert {key[1] for key in found if key[0] == "spell"} == {"strict-match", "flexible-extract"}
    assert {key[2] for key in found if key[0] == "prose"} == {"word_perplexity", "byte_perplexity", "bits_per_byte"}
    assert all(task.format == "bf16" and task.documents and not task.notes for task in scores)
    assert found["choose", "none", "acc"].documents == 12
    assert found["choose", "none", "acc"].bounded
    assert not found["prose", "none", "bits_per_byte"].bounded
    assert found["prose", "none", "bits_per_byte"].higher_is_better is False


def test_the_documents_of_a_real_folder_give_its_scores():
    recorded = json.loads(the_file(REAL / "baseline", "results_*.json").read_text())["results"]
    for task in read_output(REAL / "baseline", "bf16"):
        for found in task.aggregates:
            documents = [
                document
                for document in task.documents
                if (document.filter, document.metric) == (found.filter, found.metric)
            ]
            mean = sum(document.value for document in documents) / sum(document.weight for document in documents)
            score = math.exp(mean) if found.aggregation == "exp_mean" else mean
            assert score == pytest.approx(recorded[task.task][f"{found.metric},{found.filter}"])


def test_standard_errors_agree_with_lm_eval_and_are_there_where_it_has_none():
    recorded = json.loads(the_file(REAL / "baseline", "results_*.json").read_text())["results"]
    found = by_metric(read_output(REAL / "baseline", "bf16"))
    assert found["choose", "none", "acc"].stderr == pytest.approx(recorded["choose"]["acc_stderr,none"])
    assert recorded["prose"]["bits_per_byte_stderr,none"] == "N/A"
    assert found["prose", "none", "bits_per_byte"].stderr > 0


def test_a_real_recipe_names_what_decides_a_score():
    recipe = read_output(REAL / "baseline", "bf16")[1].recipe
    assert (recipe.lm_eval_version, recipe.task_version, recipe.num_fewshot, recipe.limit) == (
        "0.4.13",
        "1.0",
        0,
        "all",
    )
    assert (recipe.chat_template_sha, recipe.system_instruction_sha, recipe.fewshot_as_multiturn) == (
        "none",
        "none",
        False,
    )
    assert (recipe.model, recipe.backend, recipe.dtype) == ("baseline", "hf", "float32")
    assert recipe.max_length >= 512
    assert json.loads(recipe.generation)["max_gen_toks"] == 8
    assert [one["name"] for one in json.loads(recipe.filters)] == ["strict-match", "flexible-extract"]
    assert len(recipe.task_hash) == 64


def test_two_real_folders_are_paired_document_by_document():
    rows = judge(read_output(REAL / "baseline", "bf16"), read_output(REAL / "perturbed", "perturbed"))
    assert len(rows) == 11
    assert all(row.paired and row.verdict != "not comparable" for row in rows)
    row = next(row for row in rows if row.metric == "acc" and row.task == "choose")
    assert row.documents == 12
    assert row.delta == pytest.approx((row.gained - row.lost) / 12)
    assert row.answers_changed >= row.lost + row.gained
    assert "model differs: baseline and perturbed" in row.notes


def test_a_folder_its_parent_and_its_results_file_are_read_alike(folder):
    file = the_file(folder, "results_*.json")
    assert read_output(folder, "a") == read_output(folder.parent, "a") == read_output(file, "a")


def test_without_samples_scores_are_unpaired_and_say_so(folder):
    the_file(folder, "samples_choose_*.jsonl").unlink()
    scores = read_output(folder, "a")
    assert "samples are not there" in scores[0].notes[0]
    rows = judge(read_output(REAL / "baseline", "bf16"), scores)
    assert [row.paired for row in rows if row.task == "choose"] == [False, False]
    assert all("unpaired" in row.notes[0] for row in rows if row.task == "choose")
    assert all(row.paired for row in rows if row.task != "choose")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda results: results.update(chat_template_sha="5a1d"), "chat_template_sha differs: none and 5a1d"),
        (lambda results: results.update(lm_eval_version="0.4.2"), "lm_eval_version differs: 0.4.13 and 0.4.2"),
        (lambda results: results["n-shot"].update(choose=5), "num_fewshot differs: 0 and 5"),
        (lambda results: results["config"].update(limit=4.0), "limit differs: all and 4"),
        (lambda results: results["versions"].update(choose=2.0), "task_version differs: 1.0 and 2.0"),
    ],
)
def test_real_folders_of_unlike_recipes_are_not_compared(folder, change, said):
    """Case C8."""
    rows = judge(read_output(REAL / "baseline", "bf16"), read_output(changed(folder, change), "fp8"))
    assert rows[0].verdict == "not comparable"
    assert said in rows[0].notes


def test_a_standard_error_that_is_not_available_is_null():
    """Case C2: neither 0 nor text, and the other rows are there."""
    rows = {
        "one": {"exact_match,strict-match": 1.0, "exact_match_stderr,strict-match": "N/A", "sample_len": 1},
        "two": {"exact_match,strict-match": 0.057, "exact_match_stderr,strict-match": "N/A"},
        "three": {"acc,none": 0.5, "acc_stderr,none": 0.05, "sample_len": 101},
    }
    found = by_metric(task_scores(results_of(rows), {}, "bf16"))
    assert found["one", "strict-match", "exact_match"].stderr is None
    assert found["two", "strict-match", "exact_match"].stderr is None
    assert found["two", "strict-match", "exact_match"].score == 0.057
    assert found["three", "none", "acc"].stderr == 0.05


@pytest.mark.parametrize("recorded", [0.0, 0.5, 0.03])
def test_a_standard_error_that_contradicts_its_score_is_recomputed_and_said_so(folder, recorded):
    row = {"acc,none": 0.82, "acc_stderr,none": recorded, "sample_len": 200}
    (scores,) = task_scores(results_of({"mmlu": row}), {}, "bf16")
    assert scores.aggregates[0].stderr == pytest.approx(math.sqrt(0.82 * 0.18 / 199))
    assert "contradicts the score 0.82; recomputed as 0.02723" in scores.notes[0]
    wrong = changed(folder, lambda results: results["results"]["choose"].update({"acc_stderr,none": recorded}))
    scores = read_output(wrong, "bf16")[0]
    assert "contradicts the score" in scores.notes[0]
    assert (
        scores.aggregates[0].stderr == by_metric(read_output(REAL / "baseline", "bf16"))["choose", "none", "acc"].stderr
    )


def test_documents_that_do_not_give_the_score_are_not_paired(folder):
    """A corpus figure is no mean of documents: pairing them would compare something else."""
    scores = read_output(changed(folder, lambda results: results["results"]["choose"].update({"acc,none": 0.9})), "a")[
        0
    ]
    acc = scores.aggregates[0]
    assert acc.aggregation == "other"
    assert {document.metric for document in scores.documents} == {"acc_norm"}
    assert "do not average to the score" in " ".join(scores.notes)


def test_fewer_samples_than_the_results_speak_of_are_said_so(folder):
    file = the_file(folder, "samples_choose_*.jsonl")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:5]))
    scores = read_output(folder, "a")[0]
    assert "the samples hold 5 documents, the results speak of 12" in scores.notes[0]
    row = judge(read_output(REAL / "baseline", "bf16"), [scores])[0]
    assert (row.documents, row.notes[0]) == (5, "7 documents without a counterpart left out")


def test_documents_of_a_run_in_process_are_read_alike(folder):
    """numpy scalars, tuples and a cluster of the document's own, as ``simple_evaluate`` returns them."""
    samples = [
        {"doc_id": number, "doc": {"cluster": number // 2}, "filter": "none", "acc": np.float64(number % 2),
         "filtered_resps": [(np.float64(-1.0), False), (np.float64(-0.5 * number), True)]}
        for number in range(4)
    ]  # fmt: skip
    results = results_of(
        {"recall": {"acc,none": np.float64(0.5)}}, configs={"recall": {"output_type": "multiple_choice"}}
    )
    (scores,) = task_scores(results, {"recall": samples}, "bf16")
    assert [document.value for document in scores.documents] == [0.0, 1.0, 0.0, 1.0]
    assert [document.cluster for document in scores.documents] == ["0", "0", "1", "1"]
    assert [document.answer for document in scores.documents] == ["1", "1", "0", "0"]
    assert scores.to_json()


def write_results(folder, results, samples=()):
    (folder / f"results_{DATE}.json").write_text(json.dumps(results) if isinstance(results, dict) else results)
    for task, lines in dict(samples).items():
        (folder / f"samples_{task}_{DATE}.jsonl").write_text(lines)
    return folder


GOOD = results_of({"t": {"acc,none": 0.5}})


@pytest.mark.parametrize(
    ("results", "samples", "said"),
    [
        ("", {}, "not JSON"),
        ("[" * 100_000, {}, "not JSON"),
        ("[]", {}, "a results file must be a JSON object"),
        ({"results": {}}, {}, "hold no task"),
        ({"results": {"t": 3}}, {}, "results of t must be a JSON object"),
        (results_of({"t": {"acc,none": "high"}}), {}, 't: acc,none must be a number or "N/A"'),
        (results_of({"t": {"acc,none": True}}), {}, "acc,none must be a number"),
        (results_of({"t": {"acc,none": 1.0, "acc_stderr,none": []}}), {}, "acc_stderr,none must be a number"),
        ({**GOOD, "configs": {"t": "x"}}, {}, "configs of t must be a JSON object"),
        ('{"results": {"t": {"acc,none": 0.5}}, "model_name": "\\ud800"}', {}, "json: not JSON ("),
        (GOOD, {"t": '{"doc_id": 0, "acc": 1.0, "filtered_resps": ["\\uD800"]}\n'}, "line 1: not JSON"),
        (GOOD, {"t": '{"doc_id": 0}\n{"doc_id": '}, "line 2: not JSON"),
        (GOOD, {"t": "7\n"}, "line 1: a sample must be a JSON object"),
        (GOOD, {"t": '{"acc": 1.0}\n'}, "must have a whole doc_id"),
        (GOOD, {"t": '{"doc_id": 99999999999999999999, "acc": 1.0}\n'}, "must have a whole doc_id"),
        (GOOD, {"t": '{"doc_id": true, "acc": 1.0}\n'}, "must have a whole doc_id"),
    ],
)
def test_what_lm_eval_does_not_write_is_refused_in_one_sentence(tmp_path, results, samples, said):
    with pytest.raises(ValueError, match=f"results_{DATE}.json") as error:
        read_output(write_results(tmp_path, results, samples), "a")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_documents_beyond_all_numbers_spoil_no_statistics(tmp_path):
    """Squares and sums of what is let through stay finite, so that everything can be written as JSON."""
    lines = "".join(
        json.dumps({"doc_id": number, "acc": value}) + "\n" for number, value in enumerate([1e99, -1e99, 1e300])
    )
    sides = [
        read_output(write_results(tmp_path, results_of({"t": {"acc,none": 0.0}}), {"t": lines}), name) for name in "ab"
    ]
    (row,) = judge(*sides)
    assert (row.documents, row.delta) == (2, 0.0)
    assert json.dumps(dataclasses.asdict(row), allow_nan=False)


def test_values_beyond_all_numbers_are_none(tmp_path):
    text = '{"results": {"t": {"acc,none": NaN, "em,none": Infinity, "exact_match,none": 1' + "0" * 400 + "}}}"
    (scores,) = read_output(write_results(tmp_path, text), "a")
    assert [found.score for found in scores.aggregates] == [None, None, None]
    assert scores.to_json()


def test_a_character_of_two_escapes_is_read(tmp_path):
    """What is refused are halves of characters, not the pairs that JSON writes one as."""
    results = json.dumps(results_of({"t": {"acc,none": 0.5}}, model_name="a 🙂 model"))
    assert "\\ud83d\\ude42" in results
    (scores,) = read_output(write_results(tmp_path, results), "a")
    assert scores.recipe.model == "a 🙂 model"
    assert scores.to_json().encode()


@pytest.mark.parametrize("response", [{"a": 1}, [], [None], ["much"], [10**400]])
def test_responses_that_are_no_likelihoods_cost_the_answer_and_nothing_else(tmp_path, response):
    results = results_of({"t": {"acc,none": 1.0}}, configs={"t": {"output_type": "multiple_choice"}})
    sample = json.dumps({"doc_id": 0, "acc": 1.0, "filtered_resps": [[-1.0, True], response]})
    (scores,) = read_output(write_results(tmp_path, results, {"t": f"{sample}\n"}), "a")
    assert [(document.value, document.answer) for document in scores.documents] == [(1.0, None)]


@pytest.mark.parametrize(("limit", "said"), [(100, "100"), (100.0, "100"), (0.25, "0.25"), (None, "all")])
def test_a_limit_is_said_alike_by_a_command_line_and_in_process(tmp_path, limit, said):
    results = results_of({"t": {"acc,none": 0.5}}, config={"limit": limit})
    (scores,) = read_output(write_results(tmp_path, results), "a")
    assert scores.recipe.limit == said


def test_a_limit_beyond_all_numbers_is_kept_as_it_stands(tmp_path):
    results = results_of({"t": {"acc,none": 0.5}}, config={"limit": 10**400})
    (scores,) = read_output(write_results(tmp_path, results), "a")
    assert scores.recipe.limit == "1" + "0" * 400


def test_a_task_name_reaches_no_file_elsewhere(tmp_path):
    """Names are compared with the files that are there; none is ever made into a path."""
    (tmp_path / f"samples_x_{DATE}.jsonl").write_text("not to be read\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (scores,) = read_output(write_results(inner, results_of({"../samples_x": {"acc,none": 0.5}})), "a")
    assert scores.documents == ()


def test_files_beyond_the_bounds_are_refused(tmp_path, monkeypatch):
    write_results(tmp_path, GOOD, {"t": '{"doc_id": 0}\n' * 3})
    monkeypatch.setattr(lm_eval_output, "MAX_DOCUMENTS", 2)
    with pytest.raises(ValueError, match="more than 2 lines"):
        read_output(tmp_path, "a")
    monkeypatch.setattr(lm_eval_output, "MAX_LINE_BYTES", 8)
    with pytest.raises(ValueError, match="line 1 has more than 8 bytes"):
        read_output(tmp_path, "a")
    monkeypatch.setattr(lm_eval_output, "MAX_RESULTS_BYTES", 8)
    with pytest.raises(ValueError, match="more than the 8 that results may have"):
        read_output(tmp_path, "a")


def test_several_results_in_a_folder_are_read_together_unless_they_share_a_task(tmp_path):
    write_results(tmp_path, GOOD)
    other = tmp_path / "results_2026-02-02T00-00-00.000000.json"
    other.write_text(json.dumps(results_of({"u": {"acc,none": 0.25}})))
    assert [scores.task for scores in read_output(tmp_path, "a")] == ["t", "u"]
    other.write_text(json.dumps(GOOD))
    with pytest.raises(ValueError, match=r"task t is in .* and in .*; give one of them"):
        read_output(tmp_path, "a")


def test_a_path_without_results_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no results_\*.json"):
        read_output(tmp_path, "a")
    with pytest.raises(ValueError, match="no such folder or file"):
        read_output(tmp_path / "missing", "a")
