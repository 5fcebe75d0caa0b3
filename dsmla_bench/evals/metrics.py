"""Error figures of values that went through a cache, by part and by magnitude: exact sums, whatever the order.

A value x [T, w] (what the cache was given) and what a reader gets back, y [T, w], both fp32. ``ErrorSums`` takes any
number of such batches and keeps sums of x², y², (y - x)² and y - x for every magnitude and part. Memory is bounded by a
batch.

Sums are sums of integers. A value's binade 2^e <= |x| < 2^(e+1) gives it a unit; squares and errors are counted in
2^-30 of (the square of) that unit, rounded once, and added as whole numbers, below 2^53 in float64 and beyond that as
Python's integers. So no sum is ever rounded, and the result is the same to the bit on a CPU and a GPU, in any order and
for any batch size. A single value's relative error of 1e-4 loses its last digits to that rounding; a sum does not.

Figures, over the values that are finite on both sides (None where undefined: no such value, or a division by zero):

    rel_l2      sqrt(sum (y-x)² / sum x²)
    snr_db      10 log10(sum x² / sum (y-x)²); None without error
    max_abs     largest |y - x|
    max_rel     largest |y - x| / |x| over x != 0
    cosine      sum x y / sqrt(sum x² · sum y²)
    gain        sum x y / sum x²: what a reader gets of a magnitude on average, 1 without bias
    mean_bias   mean of y - x

and counts: ``clipped`` (finite values beyond the largest magnitude that their stored scale can express, see ``codec``),
``flushed`` (x != 0 read as 0), ``non_finite_in`` (x is NaN or infinite), ``non_finite_lost`` (of those, y is finite)
and ``non_finite_made`` (x is finite and y is not).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

BATCH_TOKENS = 32768
"""At most so many rows are summed at once: 2^15 values below 144 · 2^30 stay below 2^53."""
RESOLUTION = 30
_BUCKETS, _FAR = 256, 2
_SUMS = ("values", "input", "output", "error", "bias")
_COUNTS = ("clipped", "flushed", "non_finite_in", "non_finite_lost", "non_finite_made")


@dataclass(frozen=True)
class Figures:
    """The error of one part; the module docstring defines every figure. ``values``: how many are finite both sides."""

    values: int
    rel_l2: float | None
    snr_db: float | None
    max_abs: float | None
    max_rel: float | None
    cosine: float | None
    gain: float | None
    mean_bias: float | None
    clipped: int
    flushed: int
    non_finite_in: int
    non_finite_lost: int
    non_finite_made: int


@dataclass(frozen=True)
class Bucket:
    """The error of the values with ``magnitude`` <= |x| < 2 · ``magnitude``.

    ``magnitude`` is 0 for zeros (and fp32 subnormals), and None for values that came back at least twice the binade
    they went in with, zero included: those count in no other bucket.
    """

    magnitude: float | None
    values: int
    rel_l2: float | None
    gain: float | None
    mean_bias: float | None


@dataclass
class _Part:
    """Running sums of one part: [sum, bucket] as Python integers, counts and largest errors."""

    columns: slice
    sums: Any = field(default_factory=lambda: np.zeros((len(_SUMS), 2 * _BUCKETS), dtype=object))
    counts: Any = field(default_factory=lambda: np.zeros(len(_COUNTS), dtype=object))
    max_abs: float = 0.0
    max_rel: float | None = None


class ErrorSums:
    """Error sums of batches [T, w] whose columns are divided into ``parts``: name → columns."""

    def __init__(self, parts: Mapping[str, slice]) -> None:
        self._parts = {name: _Part(columns) for name, columns in parts.items()}

    def add(self, x: torch.Tensor, y: torch.Tensor, clipped: torch.Tensor | None = None) -> None:
        """Count the fp32 values x [T, w] that came back as y; ``clipped`` bool [T, w] marks those out of range."""
        clipped = torch.zeros_like(x, dtype=torch.bool) if clipped is None else clipped
        for start in range(0, len(x), BATCH_TOKENS):
            batch = slice(start, start + BATCH_TOKENS)
            self._add(x[batch], y[batch], clipped[batch])

    def _add(self, x: torch.Tensor, y: torch.Tensor, clipped: torch.Tensor) -> None:
        was_finite, is_finite = x.isfinite(), y.isfinite()
        finite = was_finite & is_finite
        flags = (
            clipped & was_finite,
            (y == 0) & (x != 0) & was_finite,
            ~was_finite,
            ~was_finite & is_finite,
            was_finite & ~is_finite,
        )
        counts = torch.stack([flag.sum(0) for flag in flags])
        x, y = torch.where(finite, x, 0), torch.where(finite, y, 0)
        errors = (y - x).abs()
        relative = torch.where(x != 0, errors / x.abs(), -1)
        largest = torch.stack([errors.amax(0), relative.amax(0)]) if len(x) else errors.new_zeros(2, x.shape[1])
        sums = bucket_sums(x, y, finite)
        for part in self._parts.values():
            part.sums += sums[..., part.columns].sum(-1).cpu().numpy().astype(object)
            part.counts += counts[:, part.columns].sum(-1).cpu().numpy().astype(object)
            if largest[:, part.columns].numel():
                absolute, share = largest[:, part.columns].amax(-1).tolist()
                part.max_abs = max(part.max_abs, absolute)
                part.max_rel = max(part.max_rel or 0.0, share) if share >= 0 else part.max_rel

    def figures(self, *names: str) -> Figures:
        """The figures of the named parts together; of all parts without a name."""
        parts = [self._parts[name] for name in names or self._parts]
        sums = np.sum([part.sums for part in parts], axis=0)
        values = int(sums[0].sum())
        total = {name: _total(sums[row], name) for row, name in enumerate(_SUMS) if row}
        defined = [part.max_rel for part in parts if part.max_rel is not None]
        counts = np.sum([part.counts for part in parts], axis=0)
        return Figures(
            values=values,
            snr_db=_decibels(total["input"], total["error"]),
            max_abs=max(part.max_abs for part in parts) if values else None,
            max_rel=max(defined, default=None),
            cosine=_cosine(total),
            **_ratios(values, total),
            **{name: int(count) for name, count in zip(_COUNTS, counts, strict=True)},
        )

    def buckets(self, *names: str) -> list[Bucket]:
        """The magnitudes that occur in the named parts, ascending; of all parts without a name."""
        sums = np.sum([self._parts[name].sums for name in names or self._parts], axis=0)
        found = [
            Bucket(2.0 ** (binade - 127) if binade else 0.0, **_bucket(sums[:, [binade]], binade))
            for binade in range(_BUCKETS)
            if sums[0, binade]
        ]
        if sums[0, _BUCKETS:].any():
            found.append(Bucket(None, **_bucket(sums[:, _BUCKETS:], 0)))
        return found


def bucket_sums(x: torch.Tensor, y: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Integer sums int64 [5, 512, w] of finite fp32 x, y [T, w] by binade and column; see the module docstring.

    Rows 0 to 255 are x's exponent byte. Rows from 256 on hold values whose y is two binades or more above x, by the
    exponent byte of y, so that no summand exceeds 144 units.
    """
    binade, out = _exponent_byte(x), _exponent_byte(y)
    far = out - binade >= _FAR
    binade = torch.where(far, out, binade)
    # 2^(128 - exponent byte): brings the larger side to 2 <= |.| < 4 without leaving fp32's normal numbers.
    unit = ((255 - binade.clamp(min=1)) << 23).view(torch.float32)
    key = (binade + _BUCKETS * far.int()) * x.shape[1] + torch.arange(x.shape[1], device=x.device, dtype=torch.int32)
    x, y = x * unit, y * unit
    sums = torch.zeros(len(_SUMS), 2 * _BUCKETS * x.shape[1], dtype=torch.float64, device=x.device)
    for row, summands in zip(sums, _summands(x, y, counted), strict=True):
        row.index_add_(0, key.flatten(), summands.double().flatten())
    return sums.long().view(len(_SUMS), 2 * _BUCKETS, x.shape[1])


def _summands(x: torch.Tensor, y: torch.Tensor, counted: torch.Tensor) -> Iterator[torch.Tensor]:
    """What each of ``_SUMS`` adds up, as whole numbers in fp32."""
    error = y - x
    yield counted
    yield from ((square * square * 2.0**RESOLUTION).round_() for square in (x, y, error))
    yield (error * 2.0**RESOLUTION).round_()


def _exponent_byte(values: torch.Tensor) -> torch.Tensor:
    return (values.contiguous().view(torch.int32) >> 23) & 0xFF


def _total(sums: Any, name: str, binade: int | None = None) -> float:
    """The sum over buckets in the values' own unit. ``binade``: the exponent byte of the only bucket given."""
    power = 1 if name == "bias" else 2
    numbered = enumerate(sums) if binade is None else ((binade, count) for count in sums)
    return math.fsum(math.ldexp(count, power * (max(b % _BUCKETS, 1) - 128) - RESOLUTION) for b, count in numbered)


def _bucket(sums: Any, binade: int) -> dict[str, Any]:
    """The figures of one bucket, or of all that came from far below their output."""
    values = int(sums[0].sum())
    only = binade if sums.shape[1] == 1 else None
    total = {name: _total(sums[row], name, only) for row, name in enumerate(_SUMS) if row}
    return {"values": values, **_ratios(values, total)}


def _ratios(values: int, total: Mapping[str, float]) -> dict[str, Any]:
    powered = total["input"] > 0
    return {
        "rel_l2": math.sqrt(total["error"] / total["input"]) if powered else None,
        "gain": _product(total) / total["input"] if powered else None,
        "mean_bias": total["bias"] / values if values else None,
    }


def _product(total: Mapping[str, float]) -> float:
    """sum x y, from the sums of squares of x, y and y - x."""
    return (total["input"] + total["output"] - total["error"]) / 2


def _cosine(total: Mapping[str, float]) -> float | None:
    if not (total["input"] > 0 and total["output"] > 0):
        return None
    if total["error"] == 0:
        return 1.0
    cosine = _product(total) / math.sqrt(total["input"]) / math.sqrt(total["output"])
    return min(1.0, max(-1.0, cosine))


def _decibels(signal: float, noise: float) -> float | None:
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None
