"""Fixtures of the tests of ``dsmla-bench accuracy``: a plugin, so that a checkpoint and a run are made once for all."""

import pytest
import transformers
from accuracy_runs import computed, load, whole_plan
from tiny_checkpoint import TASKS, write_checkpoint

from dsmla_bench.evals.lm_eval_tasks import TaskRecipe, load_tasks


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tasks():
    return load_tasks([str(TASKS)], TaskRecipe())


@pytest.fixture(scope="session")
def model(checkpoint):
    return load(checkpoint)


@pytest.fixture(scope="session")
def tokenizer(checkpoint):
    return transformers.AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="session")
def run(checkpoint, tmp_path_factory):
    """The four formats with A/A and the ablations of nvfp4_ds_mla, on the tiny tasks."""
    return computed(whole_plan(checkpoint), tmp_path_factory.mktemp("runs"))
