"""Tasks and models of ``dsmla-bench accuracy``: what lm-eval is asked, its traps, and what is refused beforehand."""

import dataclasses
import json
import shutil

import pytest
import torch
import transformers
from accuracy_runs import (
    FORMATS,
    TASK_NAMES,
    plan_of,
)
from tiny_checkpoint import TASKS

from dsmla_bench.evals import accuracy, lm_eval_tasks
from dsmla_bench.evals.backends import Variant, vllm
from dsmla_bench.evals.backends.process_model import ProcessModel
from dsmla_bench.evals.backends.sim import SimBackend, codec_sha256
from dsmla_bench.evals.backends.vllm import VllmBackend
from dsmla_bench.evals.lm_eval_model import HFLM, Float32LogitsLM
from dsmla_bench.evals.lm_eval_tasks import TaskRecipe, load_tasks, run_task, task_sha256
from dsmla_bench.evals.model_files import find_model
from dsmla_bench.evals.windows import token_windows
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import Geometry, all_formats, get_format

pytest_plugins = ("accuracy_fixtures",)

# Tasks


def test_the_recipe_reaches_the_prompts(model, tokenizer):
    recipe = TaskRecipe(num_fewshot=2, limit=3, system_instruction="w1 w2")
    (name, task), *_ = load_tasks([str(TASKS)], recipe).items()
    found = run_task(Float32LogitsLM(model, tokenizer, 4), name, task, recipe)
    prompts = {sample["arguments"][0][0] for sample in found["samples"][name]}
    assert len(prompts) == 3
    assert all(prompt.startswith("w1 w2") and prompt.count("\n\n") == 2 for prompt in prompts)
    assert found["n-shot"] == {name: 2}
    assert found["config"]["limit"] == 3


def test_a_chat_template_reaches_the_prompts_and_the_recipe(model, checkpoint):
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.chat_template = "{% for message in messages %}w5 {{ message['content'] }} w6{% endfor %}"
    recipe = TaskRecipe(limit=2, apply_chat_template=True)
    name = "tiny_generate"
    task = load_tasks([str(TASKS)], recipe)[name]
    found = run_task(Float32LogitsLM(model, tokenizer, 4), name, task, recipe)
    assert all(sample["arguments"][0][0].startswith("w5 ") for sample in found["samples"][name])
    assert found["chat_template_sha"]


def test_the_hash_of_a_task_follows_its_documents_and_settings():
    first, again = (load_tasks([str(TASKS)], TaskRecipe()) for _ in range(2))
    shots = load_tasks([str(TASKS)], TaskRecipe(num_fewshot=1))
    assert [task_sha256(task) for task in first.values()] == [task_sha256(task) for task in again.values()]
    assert len({task_sha256(task) for task in (*first.values(), *shots.values())}) == 6
    told = load_tasks([str(TASKS)], TaskRecipe(), {"seed": 1})
    assert task_sha256(told["tiny_choice"]) != task_sha256(first["tiny_choice"])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["no_such_task"], r"no task 'no_such_task', here or in lm-eval, and no folder of that name$"),
        ([str(TASKS), "tiny_text2"], "no folder of that name; near it are tiny_text"),
        ([str(TASKS.parent / "data")], r"data: holds no task; expected lm-eval's task YAML"),
        ([str(TASKS / "text.yaml")], "text.yaml: is a file; --tasks takes the folder of a task's YAML"),
    ],
)
def test_tasks_that_cannot_be_asked_are_refused_in_one_sentence(names, sentence, monkeypatch):
    index = lm_eval_tasks._manager
    monkeypatch.setattr(  # lm-eval's own 14 000 tasks take seconds to index, and would not have these either
        lm_eval_tasks, "_manager", lambda folders, include_defaults, metadata: index(folders, False, metadata)
    )
    with pytest.raises(ValueError, match=sentence) as refused:
        load_tasks(names, TaskRecipe())
    assert "\n" not in str(refused.value)


def test_a_task_that_runs_the_models_code_is_refused(tmp_path):
    shutil.copytree(TASKS, tmp_path, dirs_exist_ok=True)
    with open(tmp_path / "generate.yaml", "a") as file:
        file.write("unsafe_code: true\n")
    with pytest.raises(ValueError, match="task tiny_generate runs code that the model wrote"):
        load_tasks([str(tmp_path)], TaskRecipe())


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        ("data.make", "data.mak", r"task tiny_choice cannot be made \(AttributeError: .* has no function 'mak'"),
        ("test_split: test", "test_split: tset", r"task tiny_choice cannot be made \(KeyError: 'tset'\); see its YAML"),
        ("{{context}}", "{{contxt}}", r"task tiny_choice cannot be made \(UndefinedError: 'contxt' is undefined\)"),
        ("aggregation: mean", "aggregation: meen", "its metric acc has no aggregation that lm-eval knows"),
        ("choice: choices", "choice: choices: x", r"choice.yaml, line 6: is no YAML \(mapping values are not allowed"),
    ],
)
def test_a_mistake_in_a_tasks_yaml_names_the_task_or_the_line(tmp_path, right, wrong, sentence):
    shutil.copytree(TASKS, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "choice.yaml"
    file.write_text(file.read_text().replace(right, wrong))
    with pytest.raises(ValueError, match=sentence) as refused:
        load_tasks([str(tmp_path)], TaskRecipe())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"limit": 0}, {"limit": 1.5}, {"limit": -1}, {"num_fewshot": -1}])
def test_recipes_that_ask_nothing_are_refused(settings):
    with pytest.raises(ValueError, match="found"):
        TaskRecipe(**settings)


def test_windows_are_cut_from_the_tasks_in_turn(tasks, tokenizer):
    windows = token_windows(tasks, tokenizer, 5, 32)
    assert (tuple(windows.shape), windows.dtype) == ((5, 32), torch.int64)
    prompts = [tokenizer(document["context"]).input_ids for document in tasks["tiny_choice"].eval_docs]
    flat = [token for prompt in prompts for token in [*prompt, tokenizer.eos_token_id]]
    assert windows[0].tolist() == flat[:32]
    assert windows[3].tolist() == flat[32:64]
    assert token_windows(tasks, tokenizer, 5, 100_000).shape == (0, 100_000)


# Traps of lm-eval


def test_log_likelihoods_come_from_float32_logits(model, tokenizer, tasks):
    """With logits in bf16, as lm-eval leaves them, sums of log-likelihoods are bf16 numbers and formats look alike."""
    values = {}
    for kind in (Float32LogitsLM, HFLM):
        lm = kind(model, tokenizer=tokenizer, batch_size=4)
        samples = run_task(lm, "tiny_text", tasks["tiny_text"], TaskRecipe())["samples"]["tiny_text"]
        found = torch.tensor([sample["resps"][0][0] for sample in samples], dtype=torch.float64)
        values[kind] = found.to(torch.bfloat16).double() == found
    assert values[HFLM].all()
    assert not values[Float32LogitsLM].any()


def test_a_score_of_one_format_is_never_taken_for_another(checkpoint):
    backend = SimBackend(checkpoint, checkpoint)
    facts = [json.dumps(backend.facts(Variant("x", fmt.key)), sort_keys=True) for fmt in all_formats() if not fmt.lab]
    assert len(set(facts)) == len(facts)
    parts = [json.dumps(backend.facts(Variant("x", "nvfp4_ds_mla", only=only))) for only in (None, "nope", "rope")]
    assert len(set(parts)) == 3


def test_what_a_format_writes_decides_its_hash():
    shifted = dataclasses.replace(get_format("bf16"), dequantize=lambda *_: (torch.zeros(1), torch.zeros(1)))
    assert codec_sha256(shifted, Geometry()) != codec_sha256(get_format("bf16"), Geometry())


def test_a_task_scores_alike_whatever_ran_before_it(model, tokenizer, tasks):
    lm = Float32LogitsLM(model, tokenizer, 4)
    first, _, again = (
        run_task(lm, name, tasks[name], TaskRecipe())["samples"] for name in ("tiny_text", "tiny_choice", "tiny_text")
    )
    assert [sample["resps"] for sample in first["tiny_text"]] == [sample["resps"] for sample in again["tiny_text"]]


# Models


def test_weights_that_are_no_safetensors_are_not_loaded(checkpoint, tmp_path):
    folder = tmp_path / "pickled"
    shutil.copytree(checkpoint, folder)
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds no \*.safetensors, the only form of weights that is loaded"):
        find_model(str(folder), online=False)


def test_code_that_comes_with_a_model_is_not_run_unasked(checkpoint, tmp_path):
    folder = tmp_path / "with_code"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "home_made",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="run with --trust-remote-code only"):
        accuracy.prepare(plan_of(folder))
    assert not (tmp_path / "ran").exists()


def test_a_model_without_latents_is_refused_before_its_weights_are_read(checkpoint, tmp_path):
    folder = tmp_path / "dense"
    shutil.copytree(checkpoint, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (folder / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ValueError, match="llama has no latent cache"):
        accuracy.prepare(plan_of(folder))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"backend": "nope"}, "no backend 'nope'; available: sim, vllm, server"),
        ({"backend": "server"}, "needs a server for every format"),
        ({"formats": ("nope",)}, "no format 'nope'"),
        ({"prefill": "both"}, "prefill must be cache or fresh"),
        ({"prefill": "fresh", "backend": "vllm"}, "what a prefill reads is up to vllm"),
        ({"engine": {"x": 1}}, "arguments of an engine are for --backend vllm only"),
        ({"batch_size": 0}, "a batch size must be positive"),
        ({"batch_size": "many"}, "a batch size is a whole number or auto"),
        ({"window_tokens": 1}, "a window needs two tokens"),
    ],
)
def test_plans_that_cannot_be_asked_are_refused(checkpoint, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan_of(checkpoint, **changes)


# vLLM, and models in processes of their own


def test_vllm_is_refused_with_the_reason(checkpoint, monkeypatch):
    backend = VllmBackend(checkpoint, checkpoint)
    reasons = {
        name: backend.why_not(Variant("x", *name))
        for name in [("fp8",), ("dsv4_584",), ("nvfp4_ds_mla:up",), ("nvfp4_ds_mla", "nope")]
    }
    assert "vLLM has no cache format dsv4_584" in reasons["dsv4_584",]
    assert "name the format without ':up'" in reasons["nvfp4_ds_mla:up",]
    assert "--backend sim" in reasons["nvfp4_ds_mla", "nope"]
    if not torch.cuda.is_available():
        assert "this machine has none" in reasons["fp8",]
    monkeypatch.setattr(vllm, "find_device", lambda: (0, Architecture.parse("sm90")))
    assert "nvfp4_ds_mla" in backend.why_not(Variant("x", "nvfp4_ds_mla"))
    assert backend.why_not(Variant("x", "fp8_ds_mla")) is None


def test_every_format_reaches_vllm_as_its_cache_dtype(checkpoint):
    backend = VllmBackend(checkpoint, checkpoint, engine={"tensor_parallel_size": 8})
    arguments = [backend._arguments(Variant(name, name)) for name in FORMATS]
    assert [named["kv_cache_dtype"] for named in arguments] == ["bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"]
    assert all(named["load_format"] == "safetensors" and not named["trust_remote_code"] for named in arguments)
    assert arguments[0]["tensor_parallel_size"] == 8


def test_a_model_in_a_process_of_its_own_answers_for_every_kind_of_task(tasks, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # for lm-eval's dummy, whose tokenizer is in the hub
    lm = ProcessModel("dummy", {})
    try:
        for name in TASK_NAMES:
            found = run_task(lm, name, tasks[name], TaskRecipe(limit=2))
            assert len(found["samples"][name]) == 2
        with pytest.raises(ValueError, match=r"the model's process failed: .*Error"):
            lm.apply_chat_template([{"role": "user", "content": "x"}])
        lm._process.kill()
        with pytest.raises(ValueError, match=r"the model's process has ended \(exit code -9\)"):
            run_task(lm, "tiny_text", tasks["tiny_text"], TaskRecipe(limit=1))
    finally:
        lm.close()


def test_a_model_that_cannot_be_made_says_why():
    with pytest.raises(ValueError, match=r"the model's process has ended \(exit code 1\); it said: .*no_such_model"):
        ProcessModel("no_such_model", {})
