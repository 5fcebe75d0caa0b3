"""What providers of compiled operators share: naming a file, a package and an error in one line."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or ["no message"])[0]
