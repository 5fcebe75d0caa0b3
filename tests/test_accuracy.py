"""``dsmla-bench accuracy``: what a run holds, the command, and its exit codes."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from accuracy_runs import LINES, TASK_NAMES, computed, plan_of
from processes import run_command, run_python
from tiny_checkpoint import TASKS, write_checkpoint

from dsmla_bench.cli import accuracy as command
from dsmla_bench.evals.accuracy_import import import_results
from dsmla_bench.evals.judging import Margins
from dsmla_bench.evals.lm_eval_tasks import TaskRecipe
from dsmla_bench.reports.accuracy_report import tables_of
from dsmla_bench.reports.renderings import to_markdown, to_text
from dsmla_bench.results import Run

pytest_plugins = ("accuracy_fixtures",)

LM_EVAL_OUTPUT = Path(__file__).parent / "data" / "lm_eval" / "baseline"


# What a run holds


def test_every_line_has_every_task_and_all_but_the_baseline_are_judged_against_it(run):
    scores, judged = run.table("scores"), run.table("judged")
    assert list(run.table("variants")["format"]) == list(scores["format"].unique()) == LINES
    assert all(list(rows["task"]) == TASK_NAMES for _, rows in scores.groupby("format"))
    assert list(judged["format"].unique()) == LINES[1:]
    assert set(judged["baseline"]) == {"bf16"}
    assert judged["paired"].all()
    assert scores["score"].notna().all()


def test_probes_are_marked_and_formats_described(run):
    variants = run.table("variants").set_index("format")
    assert list(variants.index[variants["is_probe"]]) == [LINES[1], *LINES[5:]]
    assert list(variants.index[variants["is_baseline"]]) == ["bf16"]
    assert variants.loc["nvfp4_ds_mla", ["revision", "bytes_per_token"]].to_list() == ["rn", 352]


def test_the_repeat_in_other_batches_scores_what_the_baseline_scores(run):
    documents = run.table("documents")
    first, repeat = (documents[documents["format"] == name]["value"].to_list() for name in LINES[:2])
    assert first == pytest.approx(repeat, abs=1e-5)
    assert set(run.table("judged").query("format == 'bf16 (A/A)'")["verdict"]) <= {"equivalent", "inconclusive"}


def test_fidelity_holds_formats_against_a_floor_and_names_lines_alike(run):
    fidelity = run.table("fidelity").query("bucket == 'all'").set_index("format")
    assert sorted(fidelity.index) == sorted(set(LINES) - {"bf16 (A/A)"} | {"A/A"})
    assert list(fidelity.index[fidelity["is_floor"]]) == ["A/A"]
    assert fidelity.loc["nvfp4_ds_mla", "kl_mean"] > fidelity.loc["fp8_ds_mla", "kl_mean"] > 0
    assert fidelity.loc["bf16", "kl_mean"] == 0
    assert (fidelity["kl_lo"].dropna() <= fidelity["kl_mean"]).all()
    assert set(run.table("latents")["layer"]) == {0, 1}


def test_of_the_embedded_model_every_report_says_what_it_is_not_for(run):
    config = {**run.manifest["config"], "model": "embedded"}
    embedded = dataclasses.replace(run, manifest={**run.manifest, "config": config})
    for rendered in (to_text, to_markdown):
        assert "it forecasts nothing for a real DeepSeek" in rendered(tables_of(embedded))
        assert "forecasts" not in rendered(tables_of(run))


def test_a_plan_without_repeat_ablations_and_windows_computes_nothing_of_them(checkpoint, tmp_path):
    found = computed(plan_of(checkpoint, formats=("fp8_ds_mla",), repeat=False, windows=0), tmp_path)
    assert list(found.table("variants")["format"]) == ["bf16", "fp8_ds_mla"]
    assert not found.has_table("fidelity")


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"])
def test_other_families_are_scored_too(family, tmp_path_factory):
    other = write_checkpoint(tmp_path_factory.mktemp("other"), family)
    plan = plan_of(other, formats=("nvfp4_ds_mla",), repeat=False, recipe=TaskRecipe(limit=2))
    found = computed(plan, tmp_path_factory.mktemp("runs"))
    assert set(found.table("scores")["format"]) == {"bf16", "nvfp4_ds_mla"}
    assert found.table("fidelity").set_index("format").loc["bf16", "kl_mean"].max() == 0


def test_a_format_that_cannot_store_the_latents_is_skipped_with_the_reason(tmp_path_factory):
    narrow = write_checkpoint(tmp_path_factory.mktemp("narrow"), kv_lora_rank=256)
    found = computed(plan_of(narrow, formats=("fp8", "fp8_ds_mla"), windows=0), tmp_path_factory.mktemp("runs"))
    variants = found.table("variants").set_index("format")
    assert "needs 512+64, got 256+64" in variants.loc["fp8_ds_mla", "reason"]
    assert set(found.table("scores")["format"]) == {"bf16", "bf16 (A/A)", "fp8"}


# The command


def test_the_command_offline_from_an_empty_cache(checkpoint, tmp_path):
    """Case C10: a task whose data is missing fails before a model is loaded; tasks in a folder need no network."""
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    (broken / "model.safetensors").write_bytes(b"would fail if it were read")
    place = {"HF_HOME": str(tmp_path / "empty"), "OMP_NUM_THREADS": "1"}
    out = tmp_path / "runs"
    failed = run_command("accuracy", "--model", broken, "--tasks", "gsm8k", "--out", out, **place)
    assert (failed.returncode, failed.stdout) == (2, "")
    (line,) = failed.stderr.splitlines()
    assert line.startswith("dsmla-bench: task gsm8k has no data here")
    assert "openai/gsm8k" in line
    assert "HF_HUB_OFFLINE=1" in line
    assert not out.exists()
    options = [
        "--tasks",
        TASKS,
        "--formats",
        "bf16,nvfp4_ds_mla",
        "--ablate",
        "none",
        "--windows",
        2,
        "--window-tokens",
        64,
    ]
    done = run_command(
        "accuracy", "--model", checkpoint, *options, "--out", out, "--json", "--fail-on", "none", **place
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert {row["format"] for row in document["judged"]} == {"bf16 (A/A)", "nvfp4_ds_mla"}
    assert document["manifest"]["kind"] == "accuracy"


@pytest.mark.parametrize("module", ["lm_eval", "transformers"])
def test_without_the_extra_one_sentence_says_what_to_install(module, tmp_path):
    script = f"import sys; sys.modules[{module!r}] = None; from dsmla_bench.cli import main; main()"
    done = run_python("-c", script, "accuracy", "--out", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    wanted = (
        f"dsmla-bench: accuracy needs {module}, not installed here; install with pip install 'dsmla-bench[accuracy]'"
    )
    assert done.stderr.strip() == wanted


def test_results_of_lm_evals_own_command_are_judged_without_the_extra(tmp_path):
    script = "import sys; sys.modules.update(lm_eval=None, transformers=None); from dsmla_bench.cli import main; main()"
    names = ["--from", f"bf16={LM_EVAL_OUTPUT}", "--from", f"fp8_ds_mla={LM_EVAL_OUTPUT}"]
    done = run_python("-c", script, "accuracy", *names, "--out", tmp_path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["judged"]
    assert {(row["format"], row["paired"], row["delta"]) for row in document["judged"]} == {("fp8_ds_mla", True, 0)}


def test_one_format_alone_is_not_compared(tmp_path):
    with pytest.raises(ValueError, match="--from needs two formats at least"):
        import_results({"bf16": LM_EVAL_OUTPUT}, tmp_path, Margins())
    with pytest.raises(ValueError, match="no such folder"):
        import_results({"bf16": LM_EVAL_OUTPUT, "fp8": tmp_path / "missing"}, tmp_path / "runs", Margins())
    assert not list(tmp_path.iterdir())


def test_the_exit_code_follows_the_verdicts_of_formats_and_not_of_probes(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    changed = Run.load(copy)
    judged = changed.table("judged")

    def code(fail_on, **verdicts):
        found = [verdicts.get(name, "equivalent") for name in judged["format"]]
        changed.write_table("judged", judged.assign(verdict=found))
        return not command.findings(changed, command.verdicts(fail_on)).empty

    assert not code("worse")
    assert code("worse", nvfp4_ds_mla="worse")
    assert not code("worse", **{"nvfp4_ds_mla (NoPE only)": "worse", "bf16 (A/A)": "worse"})
    assert not code("worse", fp8="inconclusive")
    assert code("worse,inconclusive", fp8="inconclusive")
    assert not code("none", fp8="worse")
    with pytest.raises(ValueError, match="no verdict 'bad'"):
        command.verdicts("bad")


@pytest.mark.parametrize("texts", [["bf16"], ["=x"], ["bf16="], ["bf16=a", "bf16=b"]])
def test_names_and_values_that_are_none_are_refused(texts):
    with pytest.raises(ValueError, match="--from"):
        command.named(texts, "--from")


def test_formats_to_ablate_must_be_among_the_formats():
    assert command.ablated(None, ["bf16", "nvfp4_ds_mla"], simulated=True) == ("nvfp4_ds_mla",)
    assert command.ablated(None, ["bf16", "nvfp4_ds_mla"], simulated=False) == ()
    assert (
        command.ablated(None, ["bf16", "fp8"], simulated=True) == command.ablated("none", ["fp8"], simulated=True) == ()
    )
    with pytest.raises(ValueError, match="--ablate names fp8"):
        command.ablated("fp8", ["bf16"], simulated=True)
