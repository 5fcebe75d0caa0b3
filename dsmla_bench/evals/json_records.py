"""Frozen dataclasses from JSON, each field checked against its type: files are not trusted. Pure.

Fields are text, whole numbers, numbers, truth values, one of these or None, records, and tuples of one kind.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from dsmla_bench.evals.lm_eval_fields import LARGEST

Record = TypeVar("Record")


def record(kind: type[Record], fields: object) -> Record:
    """A JSON object as a ``kind``.

    Raises ValueError for an unknown field and a value of another type, TypeError where a field is missing.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"{kind.__name__} must be an object, found {fields!r:.60}")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(map(str, fields)) - set(hints))
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {unknown[0]!r:.60}")
    return kind(**{name: _value(f"{kind.__name__}.{name}", hints[name], value) for name, value in fields.items()})


def _value(name: str, hint: Any, value: object) -> object:
    """A JSON value as the type ``hint``: a scalar, a scalar or None, a record, or a tuple of one of these."""
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, found {value!r:.60}")
        return tuple(_value(name, typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record(hint, value)
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = typing.get_args(hint)[0]
    # A whole number is a float too, if it does not overflow.
    whole = isinstance(value, int) and not isinstance(value, bool)
    if hint is float and (isinstance(value, float) or (whole and abs(typing.cast(int, value)) < 2**63)):
        number = float(typing.cast(float, value))
        if abs(number) <= LARGEST:
            return number
    elif type(value) is hint:
        return value
    raise ValueError(f"{name} must be of type {hint.__name__}, found {value!r:.60}")
