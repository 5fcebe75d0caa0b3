"""Fields of lm-eval's results, taken out with their types checked: the data may come from anywhere. Pure."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

LARGEST = 1e100
"""No score reaches it; sums and squares of what is below stay finite."""


def mapping(value: object, what: str) -> Mapping[str, Any]:
    """``value``, which must be a JSON object; ``what`` names it in the ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a JSON object, found {value!r:.60}")
    return value


def number(value: object, what: str) -> float | None:
    """A number as a float; None for null, "N/A", NaN and what is beyond LARGEST. Raises ValueError for all else."""
    if value is None or value == "N/A":
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise ValueError(f'{what} must be a number or "N/A", found {value!r:.60}')
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) <= LARGEST else None


def part(results: Mapping[str, Any], name: str, task: str) -> Mapping[str, Any]:
    """What a section of the results says of a task; {} where it says nothing."""
    return mapping(mapping(results.get(name) or {}, name).get(task) or {}, f"{name} of {task}")


def text(value: object) -> str | None:
    """A scalar as text; None for null, "", and what is no scalar (a live model, an object)."""
    return str(value) if isinstance(value, (str, int, float)) and value != "" else None


def whole(value: object) -> int | None:
    """A whole number of 64 bits; None for all else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a JSON list, or a tuple of a run in process."""
    return isinstance(value, Sequence) and not isinstance(value, str)
