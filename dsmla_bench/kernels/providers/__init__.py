"""The registry of providers: one file each, found by discovery."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dsmla_bench.kernels.discovery import discover, require_unique
from dsmla_bench.kernels.providers.base import Provider

__all__ = ["Provider", "load_providers"]

_ORDER = ("reference", "triton")


def load_providers(libraries: Mapping[str, Path]) -> dict[str, Provider]:
    """Every known provider by name, ours first. ``libraries``: provider name → compiled library, see ``base``.

    Raises ValueError when two providers have one name.
    """
    classes = discover(sys.modules[__name__], "PROVIDERS", "dsmla_bench.providers", type)
    require_unique((cls.name for cls in classes), "provider")
    providers: dict[str, Provider] = {cls.name: cls(libraries) for cls in classes}
    ordered = [name for name in _ORDER if name in providers] + sorted(set(providers) - set(_ORDER))
    return {name: providers[name] for name in ordered}
