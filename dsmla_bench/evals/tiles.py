"""The error of tiles: their distribution and the worst of them, with what went in and what came out.

A tile is 16 neighbouring values of a token, the finest that any format scales on its own; all formats are divided
alike, so that their distributions compare. Its error is sqrt(sum (y-x)² / sum x²). Tiles of zeros have none, and tiles
with a value that is not finite on both sides are left out; both are counted as ``undefined``.

Sums of a tile are formed by halving in float64, in one order everywhere, and the distribution is a histogram over the
bits of the squared error: 64 bins an octave, so an error is known to 0.8 %. Both are equal to the bit on CPU and GPU
and independent of batch sizes. Among equal tiles the first counts as the worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

TILE = 16
WORST = 5
_SUBBINS = 6
_LOWEST, _OCTAVES = -48, 64
_BASE = (1023 + _LOWEST) << _SUBBINS
_BINS = (_OCTAVES << _SUBBINS) + 1
"""Bin 0: squared errors below 2^-48, zero included. The last bin: beyond 2^16."""


@dataclass(frozen=True)
class WorstTile:
    """One tile: its error, its place (token; first column in the part), TILE values in and out."""

    error: float
    token: int
    column: int
    inputs: tuple[float, ...]
    outputs: tuple[float, ...]


@dataclass
class TileErrors:
    """Distribution and worst tiles of one part."""

    columns: slice
    histogram: torch.Tensor = field(default_factory=lambda: torch.zeros(_BINS, dtype=torch.int64))
    undefined: int = 0
    worst: list[WorstTile] = field(default_factory=list)

    @property
    def largest(self) -> float | None:
        """The error of the worst tile; None when no tile has one."""
        return self.worst[0].error if self.worst else None

    def quantile(self, share: float) -> float | None:
        """The error that ``share`` of the tiles do not exceed, to within a bin (0.8 %); None without tiles."""
        total = int(self.histogram.sum())
        if not total:
            return None
        reached = self.histogram.cumsum(0) >= max(1, math.ceil(share * total))
        return _lower_edge(int(reached.int().argmax()))

    def octaves(self, steps: int = 4) -> list[tuple[float, float, int]]:
        """The histogram at ``steps`` bins an octave of the error: (lower edge, upper edge, tiles), empty bins left out.

        Edges are those of the fine bins, within 0.8 % of an equal division. Tiles without error (below 2^-24) are in a
        bin from 0.
        """
        coarse: dict[int, list[int]] = {}
        for number in range(_BINS):
            coarse.setdefault(_coarse(number, steps), []).append(number)
        counts = self.histogram.tolist()
        return [
            (_lower_edge(numbers[0]), _lower_edge(numbers[-1] + 1), tiles)
            for numbers in coarse.values()
            if (tiles := sum(counts[number] for number in numbers))
        ]

    def add(self, x: torch.Tensor, y: torch.Tensor, first_token: int) -> None:
        """Count the tiles of fp32 x, y [T, w] (this part's columns), whose first row is token ``first_token``."""
        x, y = (values.unflatten(-1, (-1, TILE)) for values in (x, y))
        power, defined = _sum_of_squares(x), (x.isfinite() & y.isfinite()).all(-1)
        defined &= power > 0
        squared = torch.where(defined, _sum_of_squares(y - x) / power, -1.0)
        bins = ((squared.view(torch.int64) >> (52 - _SUBBINS)) - _BASE + 1).clamp(0, _BINS - 1)
        self.histogram += torch.bincount(bins[defined], minlength=_BINS).cpu()
        self.undefined += defined.numel() - int(defined.sum())
        self._keep_worst(squared, x, y, first_token)

    def _keep_worst(self, squared: torch.Tensor, x: torch.Tensor, y: torch.Tensor, first_token: int) -> None:
        flat = squared.flatten()
        if not len(flat):
            return
        bound = float(torch.topk(flat, min(WORST, len(flat))).values[-1])
        full = len(self.worst) == WORST
        if full and math.sqrt(max(float(flat.max()), 0.0)) <= self.worst[-1].error:
            return
        places = torch.cat([(flat > bound).nonzero(), (flat == bound).nonzero()[:WORST]]).flatten()
        tiles = squared.shape[1]
        found = [
            WorstTile(math.sqrt(error), first_token + place // tiles, TILE * (place % tiles), tuple(ins), tuple(outs))
            for error, place, ins, outs in zip(
                flat[places].tolist(),
                places.tolist(),
                x.flatten(0, 1)[places].tolist(),
                y.flatten(0, 1)[places].tolist(),
                strict=True,
            )
            if error >= 0
        ]
        by_error = sorted([*self.worst, *found], key=lambda tile: (-tile.error, tile.token, tile.column))
        self.worst = by_error[:WORST]


class Tiles:
    """``TileErrors`` of every part of batches [T, w]: name → columns. A part that is no multiple of a tile has none."""

    def __init__(self, parts: Mapping[str, slice]) -> None:
        self.parts = {
            name: TileErrors(columns)
            for name, columns in parts.items()
            if columns.stop > columns.start and not (columns.stop - columns.start) % TILE
        }

    def add(self, x: torch.Tensor, y: torch.Tensor, first_token: int) -> None:
        """Count a batch whose first row is token ``first_token``."""
        for part in self.parts.values():
            part.add(x[:, part.columns], y[:, part.columns], first_token)


def _sum_of_squares(values: torch.Tensor) -> torch.Tensor:
    """fp32 [..., 16] → float64 [...], the squares added by halving: the same order on every device."""
    low, high = values[..., :8].double(), values[..., 8:].double()
    total = low * low + high * high
    for width in (4, 2, 1):
        total = total[..., :width] + total[..., width:]
    return total.squeeze(-1)


def _coarse(number: int, steps: int) -> int:
    """Which of ``steps`` bins an octave a fine bin belongs to; those without error are on their own."""
    return math.floor(steps * math.log2(_lower_edge(number)) + 1e-6) if number else -(10**6)


def _lower_edge(number: int) -> float:
    """The smallest error that falls into a bin."""
    if number == 0:
        return 0.0
    octave, step = divmod(number - 1, 1 << _SUBBINS)
    return math.sqrt(2.0 ** (_LOWEST + octave) * (1 + step / (1 << _SUBBINS)))
