"""What providers of compiled operators share: loading and naming what has them, and the scale that they ask for."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from dsmla_bench.error_text import first_line


def load_library(option: str, file: Path) -> str | None:
    """Register the operators of a compiled file, which ``option`` names, with torch; in words why that cannot be."""
    if not file.is_file():
        return f"{option} {file}: no such file"
    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        return f"{option} {file}: cannot be loaded ({first_line(error)})"
    return None


def scale_or_one(scale: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """The scale outside the cache, fp32 [1], for operators that take one for every format: 1 where there is none."""
    return scale if scale is not None else torch.ones(1, device=device)


@functools.cache
def file_sha256(file: Path) -> str:
    """SHA-256 of a file's contents."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def installed_version(package: str) -> str | None:
    """The version of an installed package, None for one that is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
