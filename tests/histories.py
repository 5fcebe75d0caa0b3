"""Generated histories: many runs of many rows with known noise and steps. Needs neither torch nor a GPU.

``python tests/histories.py STORE 2000 300`` writes one of 2000 runs × 300 rows, two years of commits on three GPUs.
"""

import dataclasses
import itertools
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
from builders import MANIFEST, REVISIONS, case

from dsmla_bench.history import History
from dsmla_bench.results import Run, rows_frame
from dsmla_bench.rows import Row

QUANTUM_US = 0.032
FIRST_NIGHT = datetime(2024, 1, 1, 3, tzinfo=UTC)


def noisy_figures(rng, true_us, quantum_us=QUANTUM_US, session=0.01):
    """Figures [runs], µs, of one process per run around ``true_us`` [runs].

    Sessions differ by 1 %, processes by 0.5 % and one in ten is 2 % slower; a process's 60 samples vary by 0.4 %, one
    in fifty is 10 % longer, and the clock rounds them.
    """
    true_us = np.asarray(true_us, float)
    runs = len(true_us)
    slow = np.where(rng.random(runs) < 0.1, 1.02, 1.0)
    process = true_us * slow * (1 + session * rng.standard_normal(runs)) * (1 + 0.005 * rng.standard_normal(runs))
    samples = process[:, None] * (1 + 0.004 * rng.standard_normal((runs, 60)))
    samples *= np.where(rng.random(samples.shape) < 0.02, 1.1, 1.0)
    return np.median(np.round(samples / quantum_us) * quantum_us, axis=1)


def step(runs, at, size, us=8.0):
    """True times [runs]: ``us``, and from run ``at`` on larger by the share ``size``."""
    return us * np.where(np.arange(runs) >= at, 1 + size, 1.0)


def history_frame(figures, **columns):
    """What a history holds of one row, one figure (µs) a night; ``columns`` go over the usual ones."""
    nights = range(len(figures))
    fixed = {"row_id": "row", "series": "series", "device": "NVIDIA H200", "device_uuid": "GPU-0", "driver": "580.159"}
    of_run = {"tool_version": "0.1.0", "packages": "{}", "commit": [f"{night:08x}" * 5 for night in nights]}
    row = {"operation": "write", "format": "fp8_ds_mla", "status": "ok", "method": "activity", "us": figures}
    times = {"run_id": [f"run-{n}" for n in nights], "started_at": [FIRST_NIGHT + timedelta(days=n) for n in nights]}
    return pd.DataFrame({**fixed, **of_run, **row, **times, "quantum_us": QUANTUM_US, **columns})


class GeneratedRun(Run):
    """A run whose rows are a frame instead of a summary of measurements."""

    frame: pd.DataFrame = None

    def rows(self):
        return self.frame


def generated_run(number, frame, **manifest):
    """Run ``number`` of a nightly series, with these rows; ``manifest`` goes over the usual one."""
    started = FIRST_NIGHT + timedelta(days=number)
    known = {
        "run_id": f"{started:%Y%m%dT%H%M%S}-{number:06x}",
        "started_at": started.isoformat(),
        "ended_at": (started + timedelta(minutes=4)).isoformat(),
        "tool_version": "0.1.0",
        "git": {"commit": f"{number * 0x9E3779B1 % 2**32:08x}" * 5},
    }
    run = GeneratedRun(Path(known["run_id"]), {**MANIFEST, **known, **manifest})
    run.frame = frame
    return run


def timed_rows(cases, us, **columns):
    """Rows frame: one ok row per case with the time of ``us``; ``columns`` are equal in all of them."""
    facts = {"status": "ok", "method": "activity", "quantum_us": QUANTUM_US, "floor_us": 0.73, **columns}
    rows = []
    for key, time in zip(cases, us, strict=True):
        figures = {"us": time, "us_lo": 0.99 * time, "us_hi": 1.01 * time, "gbps": key.tokens * 1.8 / time}
        rows.append(Row(row_id=key.row_id, **dataclasses.asdict(key), **facts, **figures))
    return rows_frame(rows)


def add_series(store, figures, number=0, **manifest):
    """One run per figure, µs, of one row, added to ``store`` from night ``number`` on."""
    for night, us in enumerate(figures, start=number):
        History(store).add(generated_run(night, timed_rows([case()], [us]), **manifest))


def cases_for(count):
    """``count`` different cases over operations, formats, providers and tokens."""
    axes = itertools.product(("write", "gather"), REVISIONS, ("triton", "vllm"), range(count))
    grid = sorted(axes, key=lambda axis: axis[3])[:count]
    return [case(operation, fmt, provider, 2**power) for operation, fmt, provider, power in grid]


def write_store(store, runs, rows, seed=0):
    """A store of ``runs`` × ``rows``: a step of 6 % in every tenth row half-way, a new driver at three quarters."""
    rng = np.random.default_rng(seed)
    cases = cases_for(rows)
    steps = [step(runs, runs // 2, 0.06 * (n % 10 == 0), us=2 + n % 40) for n in range(rows)]
    figures = np.stack([noisy_figures(rng, true) for true in steps])
    for night in range(runs):
        gpu = night % 3
        device = {"name": "NVIDIA H200", "arch": "sm90", "uuid": f"GPU-{gpu:08x}", "driver": "580.159"}
        if night >= 3 * runs // 4:
            device["driver"] = "585.20"
        frame = timed_rows(cases, figures[:, night], device=device["name"], binary_sha256=f"{night // 50:08x}" * 8)
        History(store).add(generated_run(night, frame, device=device))


if __name__ == "__main__":
    write_store(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
