"""Finding formats, operations and providers: every module of a package, then installed entry points.

A format is added by putting one file into ``kernels/formats/``, or, from outside this project, by an entry point in the
group ``dsmla_bench.formats``. Operations and providers work alike.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from dsmla_bench.error_text import typed_line


def discover(package: ModuleType, attribute: str, group: str, kind: type) -> list[Any]:
    """All members of the tuples named ``attribute`` in the modules of ``package``, then those of the entry points.

    Modules without the attribute are skipped; they are helpers. An entry point loads such a tuple. Raises ValueError
    when an entry point cannot be loaded, or loads anything but a tuple of ``kind``.
    """
    found: list[Any] = []
    for module in pkgutil.iter_modules(package.__path__):
        found += getattr(importlib.import_module(f"{package.__name__}.{module.name}"), attribute, ())
    for entry_point in entry_points(group=group):
        found += _load(entry_point, group, kind)
    return found


def _load(entry_point: EntryPoint, group: str, kind: type) -> tuple[Any, ...]:
    name = f"entry point {entry_point.value!r} of {group}"
    try:
        members = entry_point.load()
    except Exception as error:  # importing the package of somebody else may raise anything
        problem = f"{name} cannot be loaded ({typed_line(error)})"
        raise ValueError(f"{problem}; mend or uninstall the package that has it") from error
    if not isinstance(members, tuple):
        raise ValueError(f"{name} must be a tuple, found {type(members).__name__}")
    for member in members:
        if not isinstance(member, kind):
            raise ValueError(f"{name} must hold {kind.__name__} values only, found {type(member).__name__}")
    return members


def require_unique(names: Iterable[str], what: str) -> None:
    """Raise ValueError when a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two {what}s are called {name}; a {what}'s name must be unique")
        seen.add(name)
