"""Python and ``dsmla-bench`` in processes of their own: there kernels compile, where this one may be interpreting."""

import os
import subprocess
import sys
from pathlib import Path

import torch

import dsmla_bench
from dsmla_bench.kernels.arch import Architecture

PACKAGES = Path(dsmla_bench.__file__).parents[1]
CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
ABSENT = Architecture.parse("sm100" if CAPABILITY == (9, 0) else "sm90")
"""An architecture that this machine has no device of, so that kernels are checked and compiled, not timed."""


def import_path(*folders):
    """A PYTHONPATH of these folders, the one that holds this project, and what is there already."""
    return os.pathsep.join(map(str, filter(None, [*folders, PACKAGES, os.environ.get("PYTHONPATH")])))


def compiling_environment(*folders):
    """This process's environment without interpreting, and with ``folders`` on the import path."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**inherited, "PYTHONPATH": import_path(*folders)}


def run_python(*arguments, path=(), **environment):
    """A Python process that does not interpret kernels, with the folders ``path`` on its import path; all captured."""
    environment = {**compiling_environment(*path), **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", errors="replace", check=False
    )


def run_command(*arguments, path=(), **environment):
    """``dsmla-bench`` in a process of its own."""
    return run_python("-m", "dsmla_bench", *arguments, path=path, **environment)
