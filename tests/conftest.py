"""Where the tests run: compiled on a CUDA device where there is one, in Triton's interpreter elsewhere.

The same tests serve both: ``device`` is where their tensors live. Tests marked ``gpu`` need a device and skip without.
"""

import os

import pytest
import torch

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
