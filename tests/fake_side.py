"""A side of ``dsmla-bench ab`` without a device: ``python fake_side.py kernels OPTIONS``.

It takes the options of ``kernels`` that ab gives, speaks ab's protocol with ab's own code, writes a real run, and takes
its times from a seed: process r of both sides draws the same, times ``--factor`` for the row called by ``--slow``.

    --log FILE       a line for every turn: this side's name, process, rows
    --die-at N       end with exit code 9 when asked for process N
    --no-device      end with exit code 3 at once, as ``kernels`` does without a GPU
    --nap S          take so long for a turn
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from builders import MANIFEST, case, timed

from dsmla_bench.bench.ab import answers_only, take_turns
from dsmla_bench.results import Run

CASES = {
    "steady": case("write", tokens=8192),
    "slow": case("write", tokens=65536),
    "noisy": case("gather", "bf16", tokens=8192),
}
US = {"steady": 8.0, "slow": 40.0, "noisy": 9.0}
NOISE = {"steady": 0.003, "slow": 0.003, "noisy": 0.014}


def measurement(name, process, factor, seed):
    generator = np.random.default_rng([seed, process, list(CASES).index(name)])
    us = US[name] * factor * (1 + NOISE[name] * generator.standard_normal())
    return timed(CASES[name], [us] * 3, process, sm_mhz=1980.0, quantum_us=0.001)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--rows", default="steady,slow")
    parser.add_argument("--seed-of-noise", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--no-device", action="store_true")
    parser.add_argument("--nap", type=float, default=0.0)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--paired")
    options, others = parser.parse_known_args()
    if options.no_device:
        sys.exit(3)
    answers = answers_only()
    config = {"processes": options.processes, "others": others}
    if options.resume:
        run = Run.resume(options.resume, config)
    else:
        run = Run.create(options.out, {**MANIFEST, "config": config, "paired": options.paired})
    side = run.path.parent.name

    def measure(process, rows):
        if process == options.die_at:
            sys.exit(9)
        time.sleep(options.nap)
        if options.log:
            with open(options.log, "a") as log:
                log.write(f"{side} {process} {'all' if rows is None else len(rows)}\n")
        for name in options.rows.split(","):
            known = {(m.case, m.process) for m in run.measurements}
            wanted = rows is None or CASES[name].row_id in rows
            if wanted and (CASES[name], process) not in known:
                factor = options.factor if name == "slow" else 1.0
                run.append(measurement(name, process, factor, options.seed_of_noise))
                yield run.measurements[-1]

    interrupted = False
    try:
        take_turns(str(run.path), measure, sys.stdin, answers)
    except KeyboardInterrupt:
        interrupted = True
    run.finish(interrupted=interrupted)


if __name__ == "__main__":
    main()
