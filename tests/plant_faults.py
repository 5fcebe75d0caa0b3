"""Plants the faults of ``planted_faults.toml`` one after another and says which of them the tests do not find.

    python tests/plant_faults.py [WORD ...]   all, or those whose file, case or description holds one of the words

Every fault is planted in a copy of the project and the tests named with it run there until the first one fails. Exit
code 0 when each fault was found, 1 when one survived, 2 when tests fail without a fault.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.dont_write_bytecode = True  # what is planted within a second of the last fault may have its size

import pandas  # noqa: E402, F401 - imported once, ahead of all forks
import pytest  # noqa: E402
import scipy.stats  # noqa: E402, F401
import torch  # noqa: E402, F401
from planted_faults import Fault, faults  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("dsmla_bench", "tests", "pyproject.toml")
TIME_LIMIT_S = 600
TESTS_PASSED, COLLECTION_FAILED = 0, 2
"""Exit codes of pytest; higher ones say that it could not run."""


def is_found(fault: Fault, copy: Path) -> bool:
    """Whether a test fails in ``copy`` while it holds the fault."""
    file = copy / fault.path
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole.replace(fault.right, fault.wrong), encoding="utf-8")
    try:
        return fails(fault.tests, copy)
    finally:
        file.write_text(whole, encoding="utf-8")


def fails(tests: Iterable[str], copy: Path) -> bool:
    """Whether one of the tests fails in ``copy``, or takes longer than any test may.

    They run in a fork of this process, which has imported what takes long and nothing of the project.
    """
    process = multiprocessing.get_context("fork").Process(target=_run, args=(copy, tuple(tests)))
    process.start()
    process.join(TIME_LIMIT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return True
    if process.exitcode > COLLECTION_FAILED:  # below 0 is a signal: a fault may well crash
        raise RuntimeError(f"pytest could not run {' '.join(tests)}: exit code {process.exitcode}")
    return process.exitcode != TESTS_PASSED


def _run(copy: Path, tests: tuple[str, ...]) -> None:
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.exit(pytest.main(["-x", "-q", "-n", "0", *(f"tests/{test}" for test in tests)]))


def copy_project(folder: Path) -> None:
    """Copy what the tests need into ``folder``."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)


def main(words: list[str]) -> int:
    """Plant the faults that the words choose; print a line for each, and how many were found."""
    chosen = [fault for fault in faults() if not words or any(word in fault.name for word in words)]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_project(copy)
        if fails(sorted({test for fault in chosen for test in fault.tests}), copy):
            print("the tests fail although no fault is planted; mend that first")
            return 2
        for number, fault in enumerate(chosen, start=1):
            found = is_found(fault, copy)
            survived += not found
            print(f"{number}/{len(chosen)} {'found' if found else 'SURVIVED'}: {fault.name}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} planted faults found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
