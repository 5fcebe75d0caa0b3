"""A run for other tools: one file per consumer, from a run to text.

An exporter is a module of this package whose ``EXPORTERS`` is a tuple of ``Exporter``; adding one touches one file.
All keep three rules: figures are never rounded; what is not a finite number is null or left out, never NaN and never 0;
a row that is not ok has no figure, and where the consumer has a place for it, its status and reason.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from dsmla_bench.results import Run


@dataclass(frozen=True)
class Exporter:
    """A consumer's format. ``export`` turns a run of any kind into a whole file's text."""

    name: str
    summary: str
    export: Callable[[Run], str]


def all_exporters() -> dict[str, Exporter]:
    """Every exporter of this package by name."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [
        exporter
        for name in modules
        for exporter in getattr(importlib.import_module(f"{__name__}.{name}"), "EXPORTERS", ())
    ]
    return {exporter.name: exporter for exporter in found}


def get_exporter(name: str) -> Exporter:
    """The exporter of this name. Raises ValueError, listing what there is."""
    exporters = all_exporters()
    if name not in exporters:
        raise ValueError(f"no exporter {name!r}; available: {', '.join(exporters)}")
    return exporters[name]
