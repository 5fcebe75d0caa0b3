"""Damaged and hostile task YAML: a folder's task is loaded, or refused in one sentence."""

import pytest
import yaml
from fuzzing import answered_by_the_command, damaged, damaged_bytes, fuzz, garbage, values
from hypothesis import given
from hypothesis import strategies as st
from tiny_checkpoint import TASKS

from dsmla_bench.evals import lm_eval_tasks
from dsmla_bench.evals.lm_eval_tasks import TaskRecipe, load_tasks, task_sha256

TAG = "custom_dataset: !function data.make\n"
TASK = yaml.safe_load((TASKS / "choice.yaml").read_text().replace(TAG, ""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the documents of the tiny tasks; every example writes its task anew."""
    found = tmp_path_factory.mktemp("tasks")
    (found / "data.py").write_bytes((TASKS / "data.py").read_bytes())
    return found


@pytest.fixture(autouse=True, scope="module")
def small_index():
    """Without lm-eval's own 14 000 tasks, which take seconds to index."""
    whole = lm_eval_tasks._manager
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_eval_tasks, "_manager", lambda folders, _, metadata: whole(folders, False, metadata))
        yield


def load(folder, text):
    (folder / "task.yaml").write_bytes(text)
    with answered_by_the_command():
        for task in load_tasks([str(folder)], TaskRecipe()).values():
            task_sha256(task)


@fuzz(25)
@given(task=damaged(TASK) | values)
def test_a_task_of_wrong_values(folder, task):
    load(folder, TAG.encode() + yaml.dump(task).encode("utf-8", "surrogatepass"))


@fuzz(20)
@given(text=damaged_bytes((TASKS / "choice.yaml").read_bytes()) | garbage)
def test_a_task_of_damaged_bytes(folder, text):
    load(folder, text)


@fuzz(10)
@given(name=st.sampled_from(["../choice", "a/b", "", "\ud800", "x" * 300]))
def test_a_task_of_a_hostile_name(folder, name):
    load(folder, TAG.encode() + yaml.dump({**TASK, "task": name}).encode())
