"""The fidelity pass: how far a cache format moves a model's predictions, token by token.

The same windows of tokens go through the model as it is and through each format in one process, and at every position
the two distributions of the next token are compared:

    KL             sum over tokens of p (log p - log q), p of the model as it is; nats
    top-1          whether both call the same token most likely
    Δlogprob       log q(gold) - log p(gold) of the token that follows in the window; nats, negative is worse

Scores of tasks barely see a format; these do. Log-softmax is taken in float32, so a KL is known to about 1e-7. It is
never negative, so no format is held against 0: the row "A/A" is the model against itself at another batch size, and
what lies within it is no finding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsmla_bench.evals.latents import LatentRow, LatentStatistics, ObservedCache
from dsmla_bench.evals.mla_families import geometry_of
from dsmla_bench.evals.simulated_cache import CacheVariant, CodecName, Prefill, as_variant, attach, attached
from dsmla_bench.kernels.formats import CacheFormat, Geometry

FLOOR = "A/A"
"""The variant of the row that compares the model with itself."""
BUCKETS = (0, 256, 1024, 4096, 16384, 65536)
"""Positions at which a bucket begins."""
CHUNK_VALUES = 1 << 24
"""Logits that are compared at once: 64 MiB in float32."""


@dataclass(frozen=True)
class FidelityRow:
    """One variant in one bucket of positions; ``bucket`` is "all", "256-1024" (its end not in it) or "65536-".

    Figures are over the positions where both distributions are finite, None when there are none; ``undefined`` counts
    the others. ``format``, ``revision`` and ``bytes_per_token`` are None for the floor.
    """

    variant: str
    format: str | None
    revision: str | None
    only: str | None
    bytes_per_token: int | None
    bucket: str
    positions: int
    undefined: int
    kl_mean: float | None
    kl_median: float | None
    kl_p95: float | None
    kl_p99: float | None
    kl_max: float | None
    top1_agreement: float | None
    dlogprob_mean: float | None
    dlogprob_mean_abs: float | None


@dataclass(frozen=True)
class WindowRow:
    """One variant's means over one window: what to resample for an interval. None without a defined position."""

    variant: str
    window: int
    positions: int
    kl_mean: float | None
    top1_agreement: float | None
    dlogprob_mean: float | None


@dataclass(frozen=True)
class Fidelity:
    """What a fidelity pass found: rows by bucket, by window, and of latents by layer."""

    rows: tuple[FidelityRow, ...]
    windows: tuple[WindowRow, ...]
    latents: tuple[LatentRow, ...]


@dataclass(frozen=True)
class Positions:
    """Two models compared at every position: kl and dlogprob float64, agree bool, all [N, S]; NaN where undefined."""

    kl: torch.Tensor
    agree: torch.Tensor
    dlogprob: torch.Tensor


@torch.no_grad()
def fidelity(
    model: Any,
    windows: torch.Tensor,
    formats: Sequence[CacheFormat | CacheVariant],
    *,
    batch_size: int = 8,
    prefill: Prefill = "cache",
    codec: CodecName | None = None,
    latent_tokens: int = 4096,
) -> Fidelity:
    """Compare every format with the model as it is on token windows int64 [N, L].

    ``batch_size`` windows go through the model at once, and the logits of three such batches are held. Of latents about
    ``latent_tokens`` tokens are looked at, by the formats that are no ablation. Raises ValueError for windows without
    two tokens each, for variants that share a name, and as ``attach`` does.
    """
    if windows.dim() != 2 or not len(windows) or windows.shape[1] < 2:
        raise ValueError(f"windows must be token ids [N, L] with L at least 2, found {list(windows.shape)}")
    variants, geometry = _by_name(formats), geometry_of(model.config)
    statistics = LatentStatistics([variant for variant in variants.values() if variant.only is None], geometry)
    found: dict[str, list[Positions]] = {name: [] for name in (FLOOR, *variants)}
    for number, batch in enumerate(windows.split(batch_size)):
        batch = batch.to(model.device)
        gold = batch[:, 1:]
        counted = number * batch_size * windows.shape[1] < latent_tokens
        reference = _observed_logits(model, batch, statistics) if counted else _logits(model, batch)
        found[FLOOR].append(compare(reference, _logits_at_another_batch_size(model, batch), gold))
        for name, variant in variants.items():
            with attach(model, variant, prefill=prefill, codec=codec):
                found[name].append(compare(reference, _logits(model, batch), gold))
    rows, by_window = [], []
    for name, parts in found.items():
        positions = Positions(*(torch.cat(columns) for columns in zip(*map(_columns, parts), strict=True)))
        facts = _facts(variants.get(name), geometry)
        rows += [FidelityRow(name, **facts, bucket=bucket, **_figures(part)) for bucket, part in _buckets(positions)]
        by_window += [_window_row(name, window, positions) for window in range(len(windows))]
    return Fidelity(tuple(rows), tuple(by_window), tuple(statistics.rows()))


def _by_name(formats: Sequence[CacheFormat | CacheVariant]) -> dict[str, CacheVariant]:
    variants = [as_variant(fmt) for fmt in formats]
    named = {variant.name: variant for variant in variants}
    if len(named) < len(variants):
        raise ValueError(f"every variant needs a name of its own, found {', '.join(v.name for v in variants)}")
    return named


def compare(reference: torch.Tensor, other: torch.Tensor, gold: torch.Tensor) -> Positions:
    """Logits of any type [B, S, V] of two models, and the tokens that follow int64 [B, S].

    Log-softmax in float32, sums in float64, ``CHUNK_VALUES`` logits at a time.
    """
    windows = [_compare_window(*window) for window in zip(reference, other, gold, strict=True)]
    return Positions(*(torch.stack(columns).cpu() for columns in zip(*windows, strict=True)))


def _compare_window(reference: torch.Tensor, other: torch.Tensor, gold: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits [S, V] and gold [S] → KL, agreement and Δlogprob [S]."""
    count = max(1, CHUNK_VALUES // reference.shape[-1])
    chunks = zip(reference.split(count), other.split(count), gold[:, None].split(count), strict=True)
    return tuple(map(torch.cat, zip(*(_compare_rows(*chunk) for chunk in chunks), strict=True)))


def _compare_rows(
    reference: torch.Tensor, other: torch.Tensor, gold: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [T, V] and gold [T, 1] → KL, agreement and Δlogprob [T]."""
    log_p, log_q = (torch.log_softmax(logits.float(), dim=-1) for logits in (reference, other))
    difference = log_p - log_q
    terms = torch.where(log_p == -math.inf, 0.0, log_p.exp() * difference)
    # A sum of rounded terms can fall below what it sums to, 0 at the least.
    kl = terms.sum(-1, dtype=torch.float64).clamp(min=0)
    return kl, log_p.argmax(-1) == log_q.argmax(-1), -difference.gather(-1, gold).squeeze(-1).double()


def _logits(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Of every position that a token of the window follows, [B, L - 1, V]."""
    logits: torch.Tensor = model(batch).logits[:, :-1]
    return logits


def _observed_logits(model: Any, batch: torch.Tensor, statistics: LatentStatistics) -> torch.Tensor:
    with attached(model, lambda: ObservedCache(model.config, statistics.observe)):
        return _logits(model, batch)


def _logits_at_another_batch_size(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """Window by window; a batch of one window as a batch of two."""
    if len(batch) == 1:
        return _logits(model, batch.expand(2, -1))[:1]
    return torch.cat([_logits(model, window) for window in batch.split(1)])


def _facts(variant: CacheVariant | None, geometry: Geometry) -> dict[str, Any]:
    """What a row says of its variant; None stands for the floor."""
    if variant is None:
        return dict.fromkeys(("format", "revision", "only", "bytes_per_token"))
    fmt = variant.fmt
    return {
        "format": fmt.name,
        "revision": fmt.revision,
        "only": variant.only,
        "bytes_per_token": fmt.row_bytes(geometry),
    }


def _columns(positions: Positions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return positions.kl, positions.agree, positions.dlogprob


def _part(positions: Positions, rows: slice, columns: slice) -> Positions:
    return Positions(*(values[rows, columns] for values in _columns(positions)))


def _buckets(positions: Positions) -> list[tuple[str, Positions]]:
    """All positions, then those of each bucket that has any."""
    found = [("all", positions)]
    ends: tuple[int | None, ...] = (*BUCKETS[1:], None)
    for first, end in zip(BUCKETS, ends, strict=True):
        if first < positions.kl.shape[1]:
            name = f"{first}-{'' if end is None else end}"
            found.append((name, _part(positions, slice(None), slice(first, end))))
    return found


def _figures(positions: Positions) -> dict[str, Any]:
    """The figures of a row over all positions given."""
    kl, agree, dlogprob = _defined(positions)
    figures: dict[str, Any] = {"positions": positions.kl.numel(), "undefined": positions.kl.numel() - len(kl)}
    figures |= {"kl_mean": _mean(kl), "kl_max": float(kl.max()) if len(kl) else None}
    for name, share in (("kl_median", 0.5), ("kl_p95", 0.95), ("kl_p99", 0.99)):
        figures[name] = _quantile(kl, share)
    return figures | {
        "top1_agreement": _mean(agree),
        "dlogprob_mean": _mean(dlogprob),
        "dlogprob_mean_abs": _mean(dlogprob.abs()),
    }


def _window_row(name: str, number: int, positions: Positions) -> WindowRow:
    kl, agree, dlogprob = _defined(_part(positions, slice(number, number + 1), slice(None)))
    return WindowRow(name, number, positions.kl.shape[1], _mean(kl), _mean(agree), _mean(dlogprob))


def _defined(positions: Positions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """kl, agree and dlogprob as float64 [T] of the positions where both distributions are finite."""
    defined = positions.kl.isfinite() & positions.dlogprob.isfinite()
    return positions.kl[defined], positions.agree[defined].double(), positions.dlogprob[defined]


def _mean(values: torch.Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _quantile(values: torch.Tensor, share: float) -> float | None:
    """The smallest value that ``share`` of them do not exceed."""
    if not len(values):
        return None
    return float(values.kthvalue(max(1, math.ceil(share * len(values)))).values)
