"""Readers differ: the same bytes through the readers that exist, for formats with an fp32 scale per tile in the row.

    fp32   bf16(code · scale): one rounding. vLLM's gather, SGLang's, FlashInfer's ``arbitrary_fp32``
    bf16   bf16(code · bf16(scale)): the scale is rounded first. FlashMLA's decode kernel on sm_90
    ue8m0  bf16(code · scale truncated to a power of two): FlashMLA's decode kernel on sm_100 in its later form,
           FlashInfer's ``pow2_fp32``

With scales that are powers of two all of them give the same bits. With amax / 448 they do not, and truncation shrinks a
tile by a factor between 0.5 and 1: what fp8_ds_mla's revision ``pow2`` is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsmla_bench.evals.metrics import ErrorSums
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.formats.numerics import bf16_from_fp32, fp32_from_e4m3


def truncated(scales: torch.Tensor) -> torch.Tensor:
    """fp32 → the power of two at or below, as a conversion to ue8m0 that rounds toward zero gives it."""
    return (scales.view(torch.int32) & 0x7F800000).view(torch.float32)


READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fp32": lambda scales: scales,
    "bf16": lambda scales: bf16_from_fp32(scales).float(),
    "ue8m0": truncated,
}
"""Reader → what it makes of an fp32 scale before it multiplies."""


@dataclass(frozen=True)
class ReaderRow:
    """What one reader gets of one format's NoPE values. ``differing``: values whose bits are not the fp32 reader's.

    ``least_factor``: the smallest ratio of the scale that the reader uses to the one that was stored. ``rel_l2``,
    ``snr_db`` and ``gain`` as in ``metrics``, against what was written.
    """

    reader: str
    values: int
    differing: int
    least_factor: float | None
    rel_l2: float | None
    snr_db: float | None
    gain: float | None


class ReaderErrors:
    """The readers of one format, fed with batches."""

    def __init__(self, fmt: CacheFormat, geometry: Geometry) -> None:
        self.fmt, self.geometry = fmt, geometry
        self.sums = {name: ErrorSums({"NoPE": slice(0, geometry.kv_lora_rank)}) for name in READERS}
        self.differing = dict.fromkeys(READERS, 0)
        self.least: dict[str, float] = {}

    def add(self, values: torch.Tensor) -> None:
        """Count bf16 values [T, n + r]."""
        width = self.geometry.kv_lora_rank
        rows = self.fmt.quantize(values[:, :width], values[:, width:], None)
        codes, scales = _codes_and_scales(self.fmt, rows, self.geometry)
        exact = _product(codes, scales)
        for name, read in READERS.items():
            used = read(scales)
            got = _product(codes, used)
            self.differing[name] += int((got.view(torch.int16) != exact.view(torch.int16)).sum())
            factor = (used / scales)[scales.isfinite()]
            if len(factor):
                self.least[name] = min(self.least.get(name, torch.inf), float(factor.min()))
            self.sums[name].add(values[:, :width].float(), got.float())

    def rows(self) -> list[ReaderRow]:
        """A row per reader."""
        made = []
        for name, sums in self.sums.items():
            found = sums.figures()
            made.append(
                ReaderRow(
                    name,
                    found.values,
                    self.differing[name],
                    self.least.get(name),
                    found.rel_l2,
                    found.snr_db,
                    found.gain,
                )
            )
        return made


def has_readers(fmt: CacheFormat, geometry: Geometry) -> bool:
    """Whether the format's NoPE values are e4m3 with an fp32 scale for every tile in the row."""
    fields = {field.name: field for field in fmt.fields(geometry)}
    nope, scales = fields.get("NoPE"), fields.get("scales")
    return bool(nope and scales and nope.dtype == "e4m3" and scales.dtype == "fp32")


def _codes_and_scales(fmt: CacheFormat, rows: torch.Tensor, geometry: Geometry) -> tuple[torch.Tensor, torch.Tensor]:
    """The code of every NoPE value, fp32 [T, tiles, n], and the scale of every tile, fp32 [T, tiles, 1]."""
    fields = {field.name: field for field in fmt.fields(geometry)}
    nope, scales = fields["NoPE"], fields["scales"]
    codes = fp32_from_e4m3(rows[:, nope.offset : nope.end].contiguous())
    stored = rows[:, scales.offset : scales.end].contiguous().view(torch.float32)
    return codes.unflatten(-1, (scales.count, -1)), stored[..., None]


def _product(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bf16 [T, values]: a code has 4 significant bits and a bf16 scale 8, so fp32 rounds neither product twice."""
    return bf16_from_fp32((codes * scales).flatten(1))
