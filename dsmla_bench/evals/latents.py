"""Latents of a model as it runs: captured, turned into scales, and counted layer by layer.

``captured_latents`` gives what a model hands to its cache, ``calibrated_scales`` what a scale outside the cache should
be for it, and ``LatentStatistics`` how a format's own scales cope with it. Everything is observed through a cache that
changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsmla_bench.evals.codec import calibrate
from dsmla_bench.evals.simulated_cache import CacheVariant, LatentCache, as_values, attached, codec_of
from dsmla_bench.kernels.formats import CacheFormat, Geometry

Observe = Callable[[int, torch.Tensor], None]
"""Called with a layer's index and its new tokens, bf16 [B · S, n + r]."""
_EXTREMES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "e4m3": (lambda code: (code & 0x78) == 0, lambda code: (code & 0x7F) >= 0x7E),
    "ue8m0": (lambda code: code == 0, lambda code: code >= 0xFE),
    "fp32": (lambda code: (code.view(torch.int32) & 0x7F800000) == 0, lambda code: code.view(torch.float32).isinf()),
}
"""Type of a scale → from its bytes, which are subnormal or zero, and which are at its largest."""


@dataclass(frozen=True)
class LatentRow:
    """What a format makes of one layer's latents.

    absmax_nope, absmax_rope     the largest magnitudes before the cache
    scales                       scales in the rows looked at, 0 for formats without
    subnormal_scales, saturated_scales   shares of them that are subnormal or zero, and at the largest value of their
                                 type; None without scales
    clipped                      share of the values beyond what their row can express
    scale, scale_origin          the scale outside the cache and where it comes from; None for formats without
    """

    variant: str
    format: str
    revision: str
    layer: int
    tokens: int
    absmax_nope: float
    absmax_rope: float
    scales: int
    subnormal_scales: float | None
    saturated_scales: float | None
    clipped: float
    scale: float | None
    scale_origin: str | None


class ObservedCache(LatentCache):
    """A cache that shows every token to ``observe`` and keeps it as it is."""

    def __init__(self, config: Any, observe: Observe) -> None:
        super().__init__(config)
        self.observe = observe

    def through(self, layer: int, kv_c: torch.Tensor, k_pe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens themselves."""
        self.observe(layer, as_values(kv_c, k_pe))
        return kv_c, k_pe


@torch.no_grad()
def captured_latents(model: Any, windows: torch.Tensor, *, batch_size: int = 8) -> dict[int, torch.Tensor]:
    """What the model caches of token windows int64 [N, L]: layer → bf16 [N · L, n + r] on the CPU, latent first.

    Raises ValueError for a model without latents, as ``simulated_cache.attach`` does.
    """
    found: dict[int, list[torch.Tensor]] = defaultdict(list)
    with attached(model, lambda: ObservedCache(model.config, lambda layer, values: found[layer].append(values.cpu()))):
        for batch in windows.split(batch_size):
            model(batch.to(model.device))
    return {layer: torch.cat(parts) for layer, parts in sorted(found.items())}


def calibrated_scales(model: Any, windows: torch.Tensor, origin: str = "amax") -> tuple[float, ...]:
    """A scale per layer, by layer index, for formats that keep it outside the cache; ``origin`` as ``codec.calibrate``.

    Layers without latents get 1.0. Holds the latents of all ``windows`` [N, L] in memory.
    """
    latents = captured_latents(model, windows)
    return tuple(calibrate(origin, latents[layer]) if layer in latents else 1.0 for layer in range(max(latents) + 1))


class LatentStatistics:
    """Counts of what formats make of latents; ``observe`` is fed by an ``ObservedCache``."""

    def __init__(self, variants: Sequence[CacheVariant], geometry: Geometry) -> None:
        self.variants, self.geometry = tuple(variants), geometry
        self._counts: dict[tuple[int, int], _Counts] = defaultdict(_Counts)

    def observe(self, layer: int, values: torch.Tensor) -> None:
        """Count a layer's tokens, bf16 [T, n + r], for every variant."""
        for number, variant in enumerate(self.variants):
            self._counts[number, layer].add(variant, layer, self.geometry, values)

    def rows(self) -> list[LatentRow]:
        """One row per variant and layer, in their order."""
        return [counts.row(self.variants[number], layer) for (number, layer), counts in sorted(self._counts.items())]


@dataclass
class _Counts:
    tokens: int = 0
    values: int = 0
    clipped: int = 0
    scales: int = 0
    subnormal: int = 0
    saturated: int = 0
    absmax_nope: float = 0.0
    absmax_rope: float = 0.0

    def add(self, variant: CacheVariant, layer: int, geometry: Geometry, values: torch.Tensor) -> None:
        codec = codec_of(variant, layer, geometry, values.device, "torch")
        self.tokens += len(values)
        self.values += values.numel()
        self.clipped += int(codec(values)[1].sum())
        for count in scale_counts(variant.fmt, codec.rows(values), geometry):
            self.scales, self.subnormal, self.saturated = (
                total + more for total, more in zip((self.scales, self.subnormal, self.saturated), count, strict=True)
            )
        latent, rope = values.float().abs().split([geometry.kv_lora_rank, geometry.rope_dim], dim=-1)
        self.absmax_nope = max(self.absmax_nope, float(latent.amax()))
        self.absmax_rope = max(self.absmax_rope, float(rope.amax()) if geometry.rope_dim else 0.0)

    def row(self, variant: CacheVariant, layer: int) -> LatentRow:
        scale = variant.scale(layer)
        return LatentRow(
            variant=variant.name,
            format=variant.fmt.name,
            revision=variant.fmt.revision,
            layer=layer,
            tokens=self.tokens,
            absmax_nope=self.absmax_nope,
            absmax_rope=self.absmax_rope,
            scales=self.scales,
            subnormal_scales=self.subnormal / self.scales if self.scales else None,
            saturated_scales=self.saturated / self.scales if self.scales else None,
            clipped=self.clipped / self.values,
            scale=scale,
            scale_origin=None if scale is None else variant.scale_origin,
        )


def scale_counts(fmt: CacheFormat, rows: torch.Tensor, geometry: Geometry) -> list[tuple[int, int, int]]:
    """Of each field of scales in rows uint8 [T, row_bytes]: how many, how many of them subnormal or zero, saturated."""
    counts = []
    for field in fmt.fields(geometry):
        if "scale" in field.name.lower() and field.dtype in _EXTREMES:
            codes = rows[:, field.offset : field.end].contiguous()
            subnormal, saturated = (int(test(codes).sum()) for test in _EXTREMES[field.dtype])
            counts.append((len(rows) * field.count, subnormal, saturated))
    return counts
