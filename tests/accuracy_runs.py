"""Accuracy runs of a tiny checkpoint on the tiny tasks, for the tests of ``dsmla-bench accuracy``."""

import transformers
from tiny_checkpoint import TASKS

from dsmla_bench.evals import accuracy
from dsmla_bench.evals.accuracy_plan import AccuracyPlan
from dsmla_bench.results import Run

FORMATS = ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")
LINES = ["bf16", "bf16 (A/A)", *FORMATS[1:], "nvfp4_ds_mla (NoPE only)", "nvfp4_ds_mla (RoPE only)"]
TASK_NAMES = ["tiny_choice", "tiny_generate", "tiny_text"]


def load(checkpoint):
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto").eval()


def plan_of(checkpoint, **changes):
    settings = {"model": str(checkpoint), "tasks": (str(TASKS),), "windows": 2, "window_tokens": 64}
    return AccuracyPlan(**{**settings, **changes})


def whole_plan(checkpoint):
    return plan_of(checkpoint, formats=FORMATS, ablate=("nvfp4_ds_mla",))


def computed(plan, folder, resume=None):
    session = accuracy.prepare(plan)
    run = plan.resume_run(resume) if resume else plan.create_run(folder)
    assert len(list(accuracy.execute(session, run))) == session.steps()
    run.finish()
    return Run.load(run.path)
