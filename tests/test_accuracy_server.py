"""``accuracy --server``: a real server's scores are those of the simulation, and what it cannot do shows beforehand."""

import pytest
import transformers
from accuracy_runs import computed, load, plan_of
from completions_server import serving

from dsmla_bench.evals.accuracy import prepare
from dsmla_bench.evals.accuracy_plan import AccuracyPlan
from dsmla_bench.evals.backends.server import completions_url
from dsmla_bench.evals.embedded import embedded_model
from dsmla_bench.evals.lm_eval_tasks import TaskRecipe
from dsmla_bench.evals.simulated_cache import attach
from dsmla_bench.kernels.formats import get_format

pytest_plugins = ("accuracy_fixtures",)


def documents(run, name):
    found = run.table("documents")
    found = found[found["format"] == name].set_index(["task", "metric", "doc_id"])
    return found[["value", "answer", "prompt_hash"]]


def bare_plan(checkpoint, **changes):
    return plan_of(checkpoint, repeat=False, windows=0, **changes)


@pytest.mark.parametrize("concurrent", [1, 4])
def test_servers_score_what_the_simulation_scores(checkpoint, model, tokenizer, tmp_path, concurrent):
    simulated = computed(bare_plan(checkpoint, batch_size=1, formats=("bf16", "nvfp4_ds_mla")), tmp_path)
    quantized = load(checkpoint)
    with (
        attach(quantized, get_format("nvfp4_ds_mla")),
        serving(model, tokenizer) as plain,
        serving(quantized, tokenizer) as other,
    ):
        servers = {"bf16": plain.url, "nvfp4_ds_mla": other.url}
        served = computed(bare_plan(checkpoint, backend="server", servers=servers, concurrent=concurrent), tmp_path)
    for name in servers:
        ours, theirs = documents(simulated, name), documents(served, name)
        exact = ["tiny_choice", "tiny_generate"]
        assert ours.loc[exact].equals(theirs.loc[exact])
        # lm-eval adds the log-likelihoods of a text up in float32 for its own models, in float64 for servers.
        texts = (side.loc["tiny_text", "value"].to_list() for side in (ours, theirs))
        assert next(texts) == pytest.approx(next(texts), rel=1e-6)
    assert not documents(served, "bf16").equals(documents(served, "nvfp4_ds_mla"))
    assert set(served.table("judged")["paired"]) == {True}


def test_a_server_of_the_embedded_model_scores_what_the_simulation_scores(tmp_path):
    """Its own tasks, two documents of each: choices, generated answers, greedy matches and bits per byte."""
    plan = {"recipe": TaskRecipe(limit=2), "repeat": False, "windows": 0, "batch_size": 1}
    simulated = computed(AccuracyPlan(**plan), tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_model())
    with serving(load(embedded_model()), tokenizer) as server:
        served = computed(AccuracyPlan(**plan, backend="server", servers={"bf16": server.url}), tmp_path)
    ours, theirs = documents(simulated, "bf16"), documents(served, "bf16")
    exact = [name for name in ours.index.unique("task") if name != "dsmla_prose"]
    assert len(exact) == 5
    assert ours.loc[exact].equals(theirs.loc[exact])
    assert ours.loc["dsmla_prose", "value"].to_list() == pytest.approx(theirs.loc["dsmla_prose", "value"], rel=1e-6)


def test_a_server_without_log_probabilities_of_prompts_is_refused_before_anything_is_scored(
    checkpoint, model, tokenizer
):
    with serving(model, tokenizer, echoes=False) as server:
        with pytest.raises(ValueError, match=r"server bf16: .* does not return the log-probabilities of a prompt"):
            prepare(bare_plan(checkpoint, backend="server", servers={"bf16": server.url}))
        assert len(server.asked) == 1


def test_a_server_that_fails_is_named(checkpoint, model, tokenizer):
    with (
        serving(model, tokenizer, status=503) as server,
        pytest.raises(ValueError, match=r"server fp8: http.*/v1/models cannot be used \(503"),
    ):
        prepare(bare_plan(checkpoint, backend="server", servers={"fp8": server.url}))


def test_no_server_at_all_is_one_sentence(checkpoint):
    with pytest.raises(ValueError, match=r"server bf16: .* cannot be used \(ConnectionError\)$"):
        prepare(bare_plan(checkpoint, backend="server", servers={"bf16": "http://127.0.0.1:9"}))


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/completions"])
def test_a_server_may_be_named_by_any_part_of_its_url(url):
    assert completions_url(url) == "http://a:1/v1/completions"
