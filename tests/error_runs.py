"""Error runs of synthetic latents, for the tests of ``dsmla-bench error``."""

from dsmla_bench.evals.error import execute
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.results import Run

OURS = ("bf16", "fp8_ds_mla:pow2", "fp8_ds_mla:amax448", "fp8", "nvfp4_ds_mla:rn", "nvfp4_ds_mla:up")


def run_of(folder, **plan):
    """A finished run of 256 standard normal latents through all formats of ours, unless ``plan`` says otherwise."""
    run = (plan := ErrorPlan(**{"formats": OURS, "sigmas": (1.0,), "tokens": 256, **plan})).create_run(folder)
    list(execute(plan, run))
    return Run.load(run.path)
