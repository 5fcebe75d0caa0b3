"""Finding formats, operations and providers: every module of a package, then installed entry points.

A format is added by putting one file into ``kernels/formats/``, or, from outside this project, by an entry point in the
group ``dsmla_bench.formats``. Operations and providers work alike.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any


def discover(package: ModuleType, attribute: str, group: str) -> list[Any]:
    """All members of the tuples named ``attribute`` in the modules of ``package``, then those of the entry points.

    Modules without the attribute are skipped; they are helpers. An entry point loads such a tuple. Raises ValueError
    when an entry point does not load a tuple.
    """
    found: list[Any] = []
    for module in pkgutil.iter_modules(package.__path__):
        found += getattr(importlib.import_module(f"{package.__name__}.{module.name}"), attribute, ())
    for entry_point in entry_points(group=group):
        members = entry_point.load()
        if not isinstance(members, tuple):
            raise ValueError(
                f"entry point {entry_point.value!r} of {group} must be a tuple, found {type(members).__name__}"
            )
        found += members
    return found
