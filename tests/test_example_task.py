"""The task of ``examples/my_task``, which docs/adding.md explains: its documents, and a run that asks it."""

from pathlib import Path

import pytest
from accuracy_runs import computed, plan_of

from dsmla_bench.evals.lm_eval_tasks import TaskRecipe, load_tasks

pytest_plugins = ("accuracy_fixtures",)

FOLDER = str(Path(__file__).parents[1] / "examples" / "my_task")


@pytest.fixture(scope="module")
def documents():
    return load_tasks([FOLDER], TaskRecipe())["my_codes"].eval_docs


def test_every_question_can_be_answered_from_its_own_text(documents):
    assert len(documents) == 100
    for document in documents:
        *told, asked = document["prompt"].split(". ")
        codes = dict(sentence.split(" has ") for sentence in told)
        assert document["choices"][document["gold"]] == codes[asked.removesuffix(" has")]


def test_the_same_seed_draws_the_same_documents(documents):
    again = load_tasks([FOLDER], TaskRecipe())["my_codes"].eval_docs
    assert list(again) == list(documents)


def test_a_format_is_scored_by_it(checkpoint, tmp_path):
    changes = {"tasks": (FOLDER,), "formats": ("nvfp4_ds_mla",), "repeat": False, "windows": 0}
    run = computed(plan_of(checkpoint, recipe=TaskRecipe(limit=4), **changes), tmp_path)
    (judged,) = run.table("judged").to_dict("records")
    assert (judged["task"], judged["metric"], judged["format"], judged["paired"]) == (
        "my_codes",
        "acc",
        "nvfp4_ds_mla",
        True,
    )
