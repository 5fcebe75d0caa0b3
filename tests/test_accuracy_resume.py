"""What ``dsmla-bench accuracy --resume`` keeps and what it computes again."""

import shutil

import pytest
from accuracy_runs import TASK_NAMES, computed, plan_of, whole_plan
from tiny_checkpoint import write_checkpoint

from dsmla_bench.evals import accuracy
from dsmla_bench.evals.accuracy_cells import Cells
from dsmla_bench.evals.lm_eval_tasks import TaskRecipe, run_task
from dsmla_bench.results import Run

pytest_plugins = ("accuracy_fixtures",)


@pytest.fixture
def asked(monkeypatch):
    """The names of the tasks that a model was asked, in order."""
    names = []

    def spy(lm, name, *arguments):
        names.append(name)
        return run_task(lm, name, *arguments)

    monkeypatch.setattr(accuracy, "run_task", spy)
    return names


def test_a_run_that_is_gone_on_with_computes_what_it_lacks(run, checkpoint, asked, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (lost,) = (copy / "cells").glob("fp8-ds-mla.tiny-choice.*")
    lost.unlink()
    (strange,) = (copy / "cells").glob("fp8.tiny-text.*")
    strange.write_text(strange.read_text().replace('"aggregates"', '"other"'))
    with pytest.warns(UserWarning, match="fp8, tiny_text: not the scores of a task"):
        again = computed(whole_plan(checkpoint), tmp_path, resume=copy)
    assert asked == ["tiny_text", "tiny_choice"]
    for name in ("scores", "documents", "judged", "fidelity", "latents"):
        assert again.table(name).astype(str).equals(run.table(name).astype(str)), name


@pytest.mark.parametrize("changes", [{"prefill": "fresh"}, {"recipe": TaskRecipe(limit=5)}, {"batch_size": 2}])
def test_a_score_is_kept_only_where_everything_that_decides_it_is_the_same(run, checkpoint, asked, tmp_path, changes):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    settings = {"formats": ("bf16",), "repeat": False, "windows": 0}
    with pytest.warns(UserWarning, match="computed again where .* is another one than before"):
        computed(plan_of(checkpoint, **settings, **changes), tmp_path, resume=copy)
    assert asked == TASK_NAMES


def test_other_weights_are_another_model(run, tmp_path, asked):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    other = write_checkpoint(tmp_path / "other", seed=1)
    with pytest.warns(UserWarning, match="model_sha256 is another one than before"):
        computed(plan_of(other, formats=("bf16",), repeat=False, windows=0), tmp_path, resume=copy)
    assert asked == TASK_NAMES


def test_a_run_that_is_cut_short_has_tables_of_what_is_finished_and_goes_on(checkpoint, asked, tmp_path):
    plan = plan_of(checkpoint, formats=("fp8_ds_mla",), repeat=False, windows=0)
    cut = plan.create_run(tmp_path)
    steps = accuracy.execute(accuracy.prepare(plan), cut)
    assert [next(steps) for _ in range(4)][-1] == "fp8_ds_mla tiny_choice"
    steps.close()
    assert list(cut.table("judged").query("verdict != 'not comparable'")["task"]) == ["tiny_choice"]
    cut.finish(interrupted=True)
    whole = computed(plan, tmp_path, resume=cut.path)
    assert asked == [*TASK_NAMES, *TASK_NAMES]
    assert set(whole.table("judged")["task"]) == set(TASK_NAMES)


def test_a_damaged_cell_is_computed_again_and_named(tmp_path):
    cells = Cells(tmp_path / "cells")
    cells.save(("bf16", "a task/π"), {"limit": 1}, {"score": 1.0})
    (file,) = cells.folder.iterdir()
    assert cells.load(("bf16", "a task/π"), {"limit": 1}) == {"score": 1.0}
    assert cells.load(("bf16", "another"), {"limit": 1}) is None
    file.write_text(file.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    with pytest.warns(UserWarning, match=r"is damaged .* computed again"):
        assert cells.load(("bf16", "a task/π"), {"limit": 1}) is None


def test_only_accuracy_runs_can_be_gone_on_with(checkpoint, tmp_path):
    other = Run.create(tmp_path, {"kind": "error", "config": {}})
    other.finish()
    with pytest.raises(ValueError, match="is no accuracy run"):
        plan_of(checkpoint).resume_run(other.path)
