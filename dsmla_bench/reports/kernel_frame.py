"""The kernel table as numbers: one line per operation, format and shape, a group of columns per provider.

``rows`` is always a frame as ``results.rows_frame`` makes it. The columns of ``kernel_frame(rows)``:

    operation, format, revision, arch, tokens, …   the case without its provider
    <provider>_<metric>                            status, us, gbps, bound_share, … of ``METRICS``, as in ``rows.Row``
    speedup_over_<provider>                        us of that provider / us of the baseline

A speed-up is undefined unless both rows are ok and neither is suspect, and where one of the two emulates a conversion
that the other does natively. Nothing is rounded, and undefined is <NA>.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from dsmla_bench.rows import OWN_AXES, Case

BASELINE = "triton"
"""The provider whose speed-up over the others is shown: ours."""
REFERENCE = "reference"
"""The provider that defines what is right; no one serves with it."""

KERNEL_KEYS = ["operation", "format", "revision", "arch"]
"""One table each; the other keys are the axes of a shape."""
_SHAPE_KEYS = [field.name for field in dataclasses.fields(Case) if field.name not in (*KERNEL_KEYS, "provider")]
AXES = [*OWN_AXES, *(name for name in _SHAPE_KEYS if name not in OWN_AXES)]
"""The axes of a shape: first those that only some operations have, which lead a table's lines."""
KEYS = [*KERNEL_KEYS, *AXES]
OPERATIONS = ("write", "gather", "fused_norm_rope", "fused_q", "decode")
"""The order of operations in reports; an unknown one comes last."""

TIMED_METRICS = ["us", "gbps", "bound_share", "launch_bound", "suspect", "conversion"]
COMPILED_METRICS = ["registers", "spilled_bytes", "shared_bytes", "predicted_us"]
METRICS = ["status", *TIMED_METRICS, *COMPILED_METRICS]


def unit_of(queries: Any) -> str:
    """What ``tokens`` of a row count: requests where each has so many ``queries`` (decode), else tokens."""
    return "tokens" if pd.isna(queries) else "requests"


def amount(tokens: int, queries: Any) -> str:
    """ "8192 tokens", "1 token", "8 requests": the size of a launch in words."""
    unit = unit_of(queries)
    return f"{tokens} {unit.removesuffix('s') if tokens == 1 else unit}"


def told(rows: pd.DataFrame, axis: str) -> pd.Series[bool]:
    """Of which rows an axis says something: ``requests`` do not where ``tokens`` count them."""
    return rows["queries"].isna() | (axis != "requests")


def providers_of(rows: pd.DataFrame, baseline: str = BASELINE) -> list[str]:
    """The providers of a run: the baseline first, the others by name."""
    return sorted(rows["provider"].unique(), key=lambda name: (name != baseline, name))


def production_of(rows: pd.DataFrame, baseline: str = BASELINE) -> list[str]:
    """The providers of a run that people serve with: all but the baseline and the reference."""
    return [name for name in providers_of(rows, baseline) if name not in (baseline, REFERENCE)]


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` by operation as in ``OPERATIONS``, then by format, revision, architecture and shape."""
    rank = {name: number for number, name in enumerate(OPERATIONS)}

    def key(column: pd.Series[Any]) -> pd.Series[Any]:
        if column.name == "operation":
            return column.map(lambda name: (rank.get(name, len(rank)), name))
        return column.map(lambda name: (len(name), name)) if column.name == "arch" else column

    return frame.sort_values(KEYS, key=key, kind="stable", ignore_index=True)


def kernel_frame(rows: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """The table that the module docstring describes; without columns of a speed-up when no row is the baseline's.

    Raises ValueError when a case occurs twice for one provider.
    """
    providers = providers_of(rows, baseline)
    if not providers:
        return rows[KEYS].copy()
    parts = []
    for provider in providers:
        part = rows[rows["provider"] == provider].set_index(KEYS)[METRICS].add_prefix(f"{provider}_")
        if part.index.has_duplicates:
            raise ValueError(f"the rows hold a case of {provider} twice; make a table of one run at a time")
        parts.append(part)
    frame = in_order(pd.concat(parts, axis=1).reset_index())
    if providers[0] == baseline:
        for other in providers[1:]:
            frame[f"speedup_over_{other}"] = _speed_up(frame, baseline, other)
    return frame


def _speed_up(frame: pd.DataFrame, baseline: str, other: str) -> pd.Series[Any]:
    ours, theirs = frame[f"{baseline}_us"], frame[f"{other}_us"]
    both_ok = frame[[f"{baseline}_status", f"{other}_status"]].isin(["ok"]).all(axis=1)
    conversions = frame[[f"{baseline}_conversion", f"{other}_conversion"]]
    mixed = conversions.isin(["emulated"]).any(axis=1) & conversions.isin(["native"]).any(axis=1)
    suspects = frame[[f"{baseline}_suspect", f"{other}_suspect"]].fillna(False).any(axis=1)
    return (theirs / ours).where(both_ok & ~mixed & ~suspects)
