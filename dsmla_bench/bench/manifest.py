"""What a run was: packages, git state and device, for the manifest. Nothing secret: no environment, no paths."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dsmla_bench import __version__
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.nvml import driver_version, open_nvml
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import all_formats

PACKAGES = ("torch", "triton", "vllm", "flash-mla", "flashinfer-python", "numpy", "pandas", "lm-eval", "transformers")


def find_devices() -> list[Gpu]:
    """Every CUDA device of this machine, by index."""
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        arch = Architecture(properties.major, properties.minor)
        found.append(Gpu(index, properties.name, str(properties.uuid), arch.name))
    return found


def find_device(arch: Architecture | None = None) -> tuple[int, Architecture] | None:
    """Index and architecture of the first CUDA device, of ``arch`` where that is given; None without one."""
    found = ((gpu.local_index, Architecture.parse(gpu.arch)) for gpu in find_devices())
    return next((device for device in found if arch is None or device[1] == arch), None)


def describe() -> dict[str, Any]:
    """Tool, Python, packages and git commit: the part of a manifest that needs no device."""
    return {
        "tool_version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "cuda_runtime": torch.version.cuda,
        "git": _git(),
        "default_revisions": {fmt.name: fmt.revision for fmt in all_formats() if fmt.default},
    }


def describe_device(index: int) -> dict[str, Any]:
    """Name, uuid, architecture, multiprocessors, L2 and memory of a CUDA device; power, ECC, MIG and clocks by NVML."""
    properties = torch.cuda.get_device_properties(index)
    uuid = str(properties.uuid)
    nvml = open_nvml(uuid)
    return {
        "index": index,
        "name": properties.name,
        "uuid": uuid,
        "arch": Architecture(properties.major, properties.minor).name,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "driver": driver_version(),
        **(nvml.describe() if nvml else {"nvml": "not available"}),
    }


def file_sha256(path: str | Path) -> str | None:
    """SHA-256 of a file, or None when it cannot be read: who uses it will say why."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def device_name() -> str | None:
    """The first CUDA device's name, or None without one."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Commit of the source tree that this package runs from, and whether it has changes; None for an installed one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit, changes = _output(["git", "rev-parse", "HEAD"], root), _output(["git", "status", "--porcelain"], root)
    return None if commit is None else {"commit": commit, "dirty": bool(changes)}


def _output(command: list[str], folder: Path | None = None) -> str | None:
    """What a command prints, or None when there is no such command or it fails."""
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
