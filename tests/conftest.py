"""Where the tests run: compiled on a CUDA device where there is one, in Triton's interpreter elsewhere.

The same tests serve both: ``device`` is where their tensors live. Tests marked ``gpu`` need a device and skip without.
"""

import os
import sys

import pytest
import torch
from processes import import_path

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Before anything defines a kernel: Triton decides at definition whether to interpret.
    os.environ["TRITON_INTERPRET"] = "1"

from dsmla_bench.kernels.interpreter import corrected_conversions  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if HAS_GPU:
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where tensors live: the first CUDA device, or the CPU with kernels interpreted."""
    return torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def correct_interpreter():
    """Triton's interpreter converts to e4m3 and bf16 wrongly; ``kernels/interpreter.py`` says how and corrects it.

    Without this, 419 of 16 384 e4m3 codes of random data were wrong in the interpreter and right when compiled. The
    correction is the project's own conversion, which ``test_numerics.py`` holds against ml_dtypes exhaustively.
    """
    with corrected_conversions():
        yield


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs the command in this process, in an empty folder; returns exit code, standard output and standard error."""
    from dsmla_bench.cli import main

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("DSMLA_BENCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", import_path())  # for worker processes, which start in the empty folder

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dsmla-bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run
