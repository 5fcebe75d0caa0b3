"""Frames and figures as plain data for strict JSON, which knows neither <NA> nor NaN nor Infinity. Pure."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain data, undefined as None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in plain.to_dict("records")]


def finite(value: Any) -> Any:
    """Plain data of any depth with None for each figure that is not finite; tuples become lists."""
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
