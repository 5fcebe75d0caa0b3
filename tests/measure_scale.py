"""What a fleet's history costs: ``python tests/measure_scale.py FOLDER`` prints the figures of docs/scale.md.

The fleet is 1000 GPUs that each measure 300 rows a night for three years. Two slices of it are generated into one
store: one GPU for all 1095 nights, and 50 GPUs for the last 30. A store that FOLDER has already is used again. Seconds
are those of the processor, memory is the largest that the process held; both are of one command, started anew.
"""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
from builders import MANIFEST, run_of, timed
from histories import FIRST_NIGHT, cases_for, generated_run, noisy_figures, timed_rows
from processes import import_path

from dsmla_bench.history import History

FLEET, NIGHTS, ROWS = 1000, 1095, 300
BROAD_GPUS, BROAD_NIGHTS = 50, 30
PROCESSES = 5


def write_gpu(store, gpu, nights):
    """The runs of one GPU on these nights."""
    rng, cases = np.random.default_rng(gpu), cases_for(ROWS)
    figures = np.stack([noisy_figures(rng, np.full(len(nights), 2.0 + number % 40)) for number in range(ROWS)])
    device = {**MANIFEST["device"], "uuid": f"GPU-{gpu:08x}"}
    for column, night in enumerate(nights):
        rows = timed_rows(cases, figures[:, column], device=device["name"], binary_sha256=f"{night // 50:08x}" * 8)
        name = f"{FIRST_NIGHT + timedelta(days=night):%Y%m%dT%H%M%S}-{gpu:06x}"
        History(store).add(generated_run(night, rows, device=device, run_id=name))


def run_pair(folder):
    """Two runs of 300 rows in five processes, as `compare` gets them."""
    for number in range(2):
        rng = np.random.default_rng(number)
        measured = [
            timed(case, rng.normal(8.0, 0.02, 60).tolist(), process)
            for process in range(PROCESSES)
            for case in cases_for(ROWS)
        ]
        yield run_of(folder, measured).path


def cost(*arguments):
    """Processor seconds and largest memory in MB of one command; a finding is no failure."""
    command = [sys.executable, "-m", "dsmla_bench", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": import_path()})
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) > 1:
        raise SystemExit(f"failed: {command}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def size_of(folder):
    files = [file for file in Path(folder).rglob("*") if file.is_file()]
    return len(files), sum(file.stat().st_size for file in files)


def main(folder):
    store = folder / "store"
    if not store.exists():
        write_gpu(store, 0, range(NIGHTS))
        for gpu in range(1, BROAD_GPUS + 1):
            write_gpu(store, gpu, range(NIGHTS - BROAD_NIGHTS, NIGHTS))
    (runs, size), fleet = size_of(store), FLEET * NIGHTS
    print(f"{runs} runs, {runs * ROWS} rows, {size / runs / 1e3:.1f} kB a run")
    print(f"fleet: {fleet} runs, {fleet * ROWS} rows, {fleet * size / runs / 1e9:.0f} GB")
    month = f"{FIRST_NIGHT + timedelta(days=NIGHTS - BROAD_NIGHTS):%Y-%m}"
    parts = {
        "everything": (),
        "one GPU, 3 years": ("--gpu", f"GPU-{0:08x}"),
        "all GPUs, since last month": ("--since", month),
        "one GPU, since last month": ("--gpu", f"GPU-{1:08x}", "--since", month),
    }
    print("| part | runs | check s | check MB | dashboard s | dashboard MB | files | MB |")
    for name, options in parts.items():
        listed = run_count(store, options)
        checked = cost("history", "check", "--store", store, *options)
        drawn = cost("dashboard", "--store", store, "--out", folder / name, *options)
        files, written = size_of(folder / name)
        figures = [listed, *(f"{value:.1f}" for value in checked + drawn), files, f"{written / 1e6:.1f}"]
        print("|", " | ".join(map(str, [name, *figures])), "|", flush=True)
    base, head = run_pair(folder / "runs")
    files, written = size_of(base)
    print(f"a run's folder: {files} files, {written / 1e6:.2f} MB")
    print("compare: {:.1f} s, {:.0f} MB".format(*cost("compare", base, head)))
    print("history add: {:.1f} s, {:.0f} MB".format(*cost("history", "add", base, "--store", folder / "other")))


def run_count(store, options):
    """How many runs a part has."""
    command = [sys.executable, "-m", "dsmla_bench", "history", "list", "--store", store, "--last", 10**6, *options]
    environment = {**os.environ, "PYTHONPATH": import_path()}
    done = subprocess.run(list(map(str, command)), capture_output=True, env=environment, check=True)
    return len(done.stdout.splitlines())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
