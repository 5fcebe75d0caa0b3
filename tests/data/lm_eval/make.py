"""Makes the folders beside this file with lm-eval's own command: python tests/data/lm_eval/make.py

``baseline`` holds what lm-eval 0.4.13 writes of the embedded model, ``perturbed`` of it with noise on its weights. The
documents are made here, so nothing is downloaded. What lm-eval notes of the machine (``pretty_env_info``) is emptied
afterwards, and nothing else changed.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from dsmla_bench.evals.embedded import embedded_model

HERE = Path(__file__).parent
NOUNS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
CHOOSE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "gold",
    "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
}
SPELL = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 8},
    "filter_list": [
        {"name": name, "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}]}
        for name, pattern in (("strict-match", "^ ?([a-h])"), ("flexible-extract", "([a-h])"))
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
PROSE = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
}


def documents():
    """The documents of every task, few and short."""
    drawn = random.Random(0)
    choices = []
    for _ in range(12):
        options, gold = drawn.sample(NOUNS, 4), drawn.randrange(4)
        choices.append({"question": f"{options[gold]} is here. What is here?", "choices": options, "gold": gold})
    return {
        "choose": choices,
        "animals_a": choices[:3],
        "animals_b": choices[3:6],
        "spell": [{"question": f"Spell {noun}:", "answer": noun[0]} for noun in NOUNS[:6]],
        "prose": [{"text": " ".join(drawn.choices(NOUNS, k=6))} for _ in range(5)],
    }


def write_tasks(folder):
    """The tasks' YAML and documents, and a group of two of them."""
    settings = {"choose": CHOOSE, "animals_a": CHOOSE, "animals_b": CHOOSE, "spell": SPELL, "prose": PROSE}
    for name, found in documents().items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in found))
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}}}
        task = {"task": name, **data, "test_split": "test", **settings[name], "metadata": {"version": 1.0}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    metrics = [{"metric": "acc", "weight_by_size": True}]
    group = {"group": "animals", "task": ["animals_a", "animals_b"], "aggregate_metric_list": metrics}
    (folder / "animals.yaml").write_text(yaml.safe_dump(group))


def evaluate(name, folder):
    """lm-eval's command on the checkpoint ``name`` in ``folder``, its output put beside this file."""
    lm_eval = str(Path(sys.executable).with_name("lm_eval"))
    arguments = f"pretrained={name},add_bos_token=False,dtype=float32"
    command = [lm_eval, "run", "--model", "hf", "--model_args", arguments, "--include_path", ".", "--device", "cpu",
               "--tasks", "choose,spell,prose,animals", "--output_path", "output", "--log_samples"]  # fmt: skip
    subprocess.run(command, cwd=folder, env={**os.environ, **OFFLINE, "HF_HOME": str(folder / "hf")}, check=True)
    for file in (folder / "output" / name).glob("results_*.json"):
        found = json.loads(file.read_text())
        file.write_text(json.dumps({**found, "pretty_env_info": ""}, indent=1, ensure_ascii=False))
    shutil.rmtree(HERE / name, ignore_errors=True)
    shutil.copytree(folder / "output" / name, HERE / name)


def main():
    torch.manual_seed(0)
    model, tokenizer = (kind.from_pretrained(embedded_model()) for kind in (AutoModelForCausalLM, AutoTokenizer))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_tasks(folder)
        for name, noise in (("baseline", 0.0), ("perturbed", 0.1)):
            with torch.no_grad():
                for values in model.parameters():
                    values.mul_(1 + noise * torch.randn_like(values))
            model.save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
            evaluate(name, folder)


if __name__ == "__main__":
    main()
