"""Which figures of a row may stand in one series, and where something about them became new.

``marks`` is a frame with a line per figure of one row on one model of GPU, by time. A *series* is what one device
measured with one version of the benchmark. A *segment* starts where the device, that version, the driver, the timing
method or the kernel's machine code is another than at the figure before in the series, and says which. Levels are not
compared across the first four: the ruler changed. A new kernel is what a history is watched for, so across that they
are. What is unknown on either side is not new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Integers = NDArray[np.int64]

KERNEL = "binary_sha256"
RULERS = {"device_uuid": "device", "tool_version": "dsmla-bench", "driver": "driver", "method": "timing method"}
"""Columns across which levels are not compared, and what they are called."""
NAMES = {**RULERS, KERNEL: "kernel"}
MARKS = ["series", *NAMES]


@dataclass(frozen=True)
class Segment:
    """From figure number ``start`` on something is new; ``compared``: levels before and after may be compared."""

    start: int
    reasons: tuple[str, ...]
    compared: bool


def segments_of(marks: pd.DataFrame) -> list[Segment]:
    """The segments but the first, by ``start``. A series that begins later is held against the figure before it."""
    series = _codes(marks["series"])
    before = _previous(series)
    before[0:1] = -1
    late_starts = np.flatnonzero(before < 0)[1:]
    before[late_starts] = late_starts - 1
    reasons: dict[int, list[str]] = {}
    breaks = set()
    for name, label in NAMES.items():
        starts = np.flatnonzero(_differs(_codes(marks[name]), before))
        if name in RULERS:
            breaks.update(starts.tolist())
        for start, pair in zip(starts.tolist(), _pairs(marks[name], before[starts], starts), strict=True):
            reasons.setdefault(start, []).append(f"{label} {pair}")
    return [Segment(start, tuple(reasons[start]), compared=start not in breaks) for start in sorted(reasons)]


def stretches(marks: pd.DataFrame) -> Iterator[tuple[Integers, bool]]:
    """Numbers of the figures whose levels may be compared, and whether they are the newest such of their series."""
    series = _codes(marks["series"])
    before = _previous(series)
    breaks = np.logical_or.reduce([_differs(_codes(marks[name]), before) for name in RULERS])
    for code in np.unique(series):
        numbers = np.flatnonzero(series == code)
        parts = np.split(numbers, np.flatnonzero(breaks[numbers]))
        for part in parts:
            if len(part):
                yield part, bool(part[-1] == numbers[-1])


def _codes(column: pd.Series[str]) -> Integers:
    """A number per distinct value, -1 for unknown."""
    return pd.factorize(column)[0].astype(np.int64)


def _previous(series: Integers) -> Integers:
    """Number of the figure before in the same series, -1 for the first."""
    order = np.argsort(series, kind="stable")
    before = np.full(len(series), -1, dtype=np.int64)
    same = series[order[1:]] == series[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _differs(codes: Integers, before: Integers) -> NDArray[np.bool_]:
    """Where a known value is another than the known value of the figure ``before``."""
    other = np.where(before >= 0, codes[before], -1)
    differs: NDArray[np.bool_] = (codes >= 0) & (other >= 0) & (codes != other)
    return differs


def _pairs(column: pd.Series[str], before: Integers, starts: Integers) -> list[str]:
    """ "old → new" at each start; of hashes and uuids the first digits, by which people tell them apart."""
    old, new = (column.iloc[numbers].astype(str) for numbers in (before, starts))
    if column.name in (KERNEL, "device_uuid"):
        old, new = (texts.str.removeprefix("GPU-").str[:8] for texts in (old, new))
    return [f"{then} → {now}" for then, now in zip(old, new, strict=True)]
