"""Through the cache and back: what a reader gets of latents, by any provider, with the probes of the error lab.

    latent_scale  multiplies kv_c before it is quantized and divides it after it was read, as a model could absorb it
                  into its norm and projection weights. A power of two, so that it changes nothing by itself.
    only          "nope" or "rope": the other part passes as bf16
    scale         of formats that keep one per layer outside the cache; ``calibrate`` makes one

A value is ``clipped`` when it is finite and beyond the largest magnitude that its row can express with the scales that
it holds: that magnitude is what a reader makes of the row with every value's code set to the type's largest one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat, Field, Geometry
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations import Operation, all_operations
from dsmla_bench.kernels.operations.gather import GatherInputs
from dsmla_bench.kernels.operations.pages import new_cache
from dsmla_bench.kernels.operations.write import WriteInputs
from dsmla_bench.kernels.providers import Provider

BLOCK_SIZE = 64
PERCENTILE = 99.9
SCALE_ORIGINS = ("default", "amax", "percentile")
ABLATIONS = {"nope": "NoPE only", "rope": "RoPE only"}
"""The part that alone is quantized → what tables call that."""
_LARGEST = {
    "e4m3": b"\x7e",
    "e5m2": b"\x7c",
    "e2m1": b"\x77",
    "int8": b"\x7f",
    "bf16": b"\x80\x7f",
    "fp16": b"\x00\x7c",
    "fp32": b"\x00\x00\x80\x7f",
}
"""The bytes of the largest value of a type: infinity where it has one, so that nothing clips."""


@dataclass(frozen=True)
class Codec:
    """A format by a provider on a device, with its probes; see the module docstring. ``provider`` None: reference."""

    fmt: CacheFormat
    geometry: Geometry
    device: torch.device
    provider: Provider | None = None
    scale: float | None = None
    latent_scale: float = 1.0
    only: str | None = None

    def __call__(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """bf16 [T, n + r] on the device → what a reader gets, fp32 [T, n + r], and which values are clipped, bool."""
        kv_c, k_pe = self._scaled(values)
        rows = self.rows(values)
        read = self._restored(values, self._read(rows) if self.provider is None else self._through(kv_c, k_pe))
        limits = self._read(_saturated(self.fmt, rows, self.geometry))
        clipped = torch.cat([kv_c, k_pe], dim=-1).abs() > limits.abs()
        for columns in self._untouched:
            clipped[:, columns] = False
        return read, clipped

    def read(self, values: torch.Tensor) -> torch.Tensor:
        """bf16 [T, n + r] on the device → what a reader gets, fp32 [T, n + r]."""
        read = self._read(self.rows(values)) if self.provider is None else self._through(*self._scaled(values))
        return self._restored(values, read)

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """bf16 [T, n + r] on the device → the bytes by the reference, uint8 [T, row_bytes]."""
        return self.fmt.quantize(*self._scaled(values), self._scale)

    def _scaled(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """kv_c times the latent scale, and k_pe."""
        width = self.geometry.kv_lora_rank
        kv_c = values[:, :width]
        return kv_c if self.latent_scale == 1.0 else kv_c * self.latent_scale, values[:, width:]

    def _restored(self, values: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """``read`` with the latent scale divided out, and with the part that passes as bf16 put back; in place."""
        if self.latent_scale != 1.0:
            read[:, : self.geometry.kv_lora_rank] /= self.latent_scale
        for columns in self._untouched:
            read[:, columns] = values[:, columns].float()
        return read

    @property
    def _untouched(self) -> tuple[slice, ...]:
        """The columns that pass as bf16."""
        width = self.geometry.kv_lora_rank
        return {"nope": (slice(width, None),), "rope": (slice(0, width),)}.get(self.only or "", ())

    @functools.cached_property
    def _scale(self) -> torch.Tensor | None:
        return None if self.scale is None else torch.tensor([self.scale], dtype=torch.float32, device=self.device)

    def _read(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.fmt.dequantize(rows, self.geometry, self._scale), dim=-1).float()

    def _through(self, kv_c: torch.Tensor, k_pe: torch.Tensor) -> torch.Tensor:
        """Written into a paged cache and gathered from it by the provider's kernels."""
        provider = self.provider
        assert provider is not None
        tokens, arch = len(kv_c), architecture(self.device)
        pages = math.ceil(tokens / BLOCK_SIZE)
        cache = new_cache(self.fmt, pages, BLOCK_SIZE, self.device, self.geometry)
        slots = torch.arange(tokens, device=self.device)
        write, gather = operations()
        provider.bind(write, self.fmt, WriteInputs(kv_c, k_pe, cache, slots, self._scale), arch)()
        workspace = kv_c.new_empty(tokens, kv_c.shape[1] + k_pe.shape[1])
        table = torch.arange(pages, device=self.device, dtype=torch.int32)[None]
        starts = torch.zeros(1, device=self.device, dtype=torch.int32)
        inputs = GatherInputs(cache, table, starts, workspace, self.geometry, scale=self._scale)
        provider.bind(gather, self.fmt, inputs, arch)()
        return workspace.float()


@functools.cache
def operations() -> tuple[Operation, Operation]:
    """The operations that a provider must have: write and gather."""
    by_name = {operation.name: operation for operation in all_operations()}
    return by_name["write"], by_name["gather"]


def architecture(device: torch.device) -> Architecture:
    """Of a CUDA device; of the CPU, where Triton interprets, the number 0."""
    return Architecture(*divmod(device_arch(device), 10))


def why_not(fmt: CacheFormat, name: str, provider: Provider, device: torch.device) -> str | None:
    """Why the provider cannot take a format through the cache here, in one sentence; None when it can."""
    if name == "reference":
        return None
    if device.type != "cuda":
        return f"{name}'s kernels need a CUDA device"
    arch = architecture(device)
    return next((why for op in operations() if (why := provider.why_not(op, fmt, arch)) is not None), None)


def calibrate(origin: str, values: torch.Tensor) -> float:
    """The scale of a layer from fp32 or bf16 values of any shape, so that what it goes by is stored as 448.

    default     1.0, what a checkpoint without scales gets
    amax        the largest finite magnitude
    percentile  the magnitude that 99.9 % of the finite values do not exceed

    1.0 where that would be no scale (nothing finite, or zeros only). Raises ValueError for another origin.
    """
    if origin not in SCALE_ORIGINS:
        raise ValueError(f"no scale origin {origin!r}; available: {', '.join(SCALE_ORIGINS)}")
    magnitudes = values[values.isfinite()].float().abs()
    if origin == "default" or not len(magnitudes):
        return 1.0
    share = 100.0 if origin == "amax" else PERCENTILE
    wanted = float(magnitudes.kthvalue(max(1, math.ceil(share / 100 * len(magnitudes)))).values)
    return float(torch.tensor(wanted) / torch.tensor(448.0)) or 1.0


def require_probes(only: str | None, latent_scales: Iterable[float]) -> None:
    """Raise ValueError for a part that cannot be quantized alone, and for a latent scale that is no power of two."""
    if only is not None and only not in ABLATIONS:
        raise ValueError(f"only nope or rope can be quantized alone, found {only!r}")
    for factor in latent_scales:
        if not (math.isfinite(factor) and factor > 0 and math.frexp(factor)[0] == 0.5):
            raise ValueError(f"a latent scale must be a power of two, found {factor:g}")


def _saturated(fmt: CacheFormat, rows: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """The rows with the code of every value set to its type's largest one, scales and padding as they are."""
    rows = rows.clone()
    for field in fmt.fields(geometry):
        if _holds_values(field):
            code = torch.tensor(list(_LARGEST[field.dtype]), dtype=torch.uint8, device=rows.device)
            rows[:, field.offset : field.end] = code.repeat(field.nbytes // len(code))
    return rows


def _holds_values(field: Field) -> bool:
    return field.dtype in _LARGEST and not any(word in field.name.lower() for word in ("scale", "pad"))
