"""lm-eval's own output as an accuracy run: read, judged and written like one that was computed here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dsmla_bench.bench.manifest import describe
from dsmla_bench.evals.accuracy_results import Results
from dsmla_bench.evals.accuracy_rows import VariantRow
from dsmla_bench.evals.judging import Margins
from dsmla_bench.evals.lm_eval_output import read_output
from dsmla_bench.evals.scores import BASELINE
from dsmla_bench.places import Where
from dsmla_bench.results import Run, config_hash


def import_results(paths: Mapping[str, Path], out: Where, margins: Margins) -> Run:
    """A finished run below ``out`` of format → its folder of results. The baseline is bf16, else the one named first.

    Raises ValueError for fewer than two formats, and as ``read_output`` does; nothing is written then.
    """
    if len(paths) < 2:
        raise ValueError("--from needs two formats at least to compare, e.g. --from bf16=DIR --from fp8_ds_mla=DIR")
    scores = {name: read_output(path, name) for name, path in paths.items()}
    baseline = BASELINE if BASELINE in paths else next(iter(paths))
    names = [baseline, *(name for name in paths if name != baseline)]
    variants = [VariantRow(name, None, None, None, None, name == baseline, is_probe=False) for name in names]
    config = {"from": {name: str(path) for name, path in paths.items()}, "margins": vars(margins)}
    manifest = {"kind": "accuracy", "argv": ["dsmla-bench", *sys.argv[1:]], **describe(), "baseline": baseline}
    run = Run.create(out, {**manifest, "config": config, "config_hash": config_hash(config)})
    Results(baseline, variants, scores).write(run, margins)
    run.finish()
    return run
