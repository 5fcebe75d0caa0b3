"""The tables of an error run, one frozen dataclass per kind of row, and their frames.

    errors.parquet       format × data × provider × probes × part     ErrorRow
    buckets.parquet      the same, by magnitude                       BucketRow
    tiles.parquet        the same, histogram of tile errors           TileRow
    worst_tiles.parquet  the worst tiles with what went in and out    WorstTileRow
    attention.parquet    what attention sees, against bf16 and fp32   AttentionRow
    readers.parquet      the same bytes through other readers         ReaderTableRow

Undefined is None. ``variant`` of an error row joins the other tables to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VariantRow:
    """What every row says of itself.

    variant          a number for format × data × provider × probes of this run
    bytes_per_token  of the format's row
    provider         "reference" (torch) or whose kernels wrote and read
    data, kind, sigma, tokens   the source: its name, kind (``file`` for a file) and sigma, and how many tokens
    scale_origin, scale         of formats whose scale is outside the cache, else None
    latent_scale, only          the probes of ``codec``
    """

    variant: int
    format: str
    revision: str
    bytes_per_token: int
    data: str
    kind: str
    provider: str | None = None
    sigma: float | None = None
    tokens: int | None = None
    scale_origin: str | None = None
    scale: float | None = None
    latent_scale: float | None = None
    only: str | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorRow(VariantRow):
    """A part ("NoPE", "RoPE", "both") of a variant: the figures of ``metrics`` and the tile errors of ``tiles``.

    status is "ok", or "skipped" with a reason and no figures. seconds: quantizing, reading back and summing up all
    parts of the variant, without drawing the data. undefined_tiles: all zeros, or with a value that is not finite.
    """

    part: str
    status: str
    reason: str | None = None
    values: int | None = None
    rel_l2: float | None = None
    snr_db: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    gain: float | None = None
    mean_bias: float | None = None
    clipped: int | None = None
    flushed: int | None = None
    non_finite_in: int | None = None
    non_finite_lost: int | None = None
    non_finite_made: int | None = None
    tile_p50: float | None = None
    tile_p90: float | None = None
    tile_p99: float | None = None
    tile_max: float | None = None
    undefined_tiles: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class BucketRow:
    """Values of one magnitude; see ``metrics.Bucket``."""

    variant: int
    part: str
    magnitude: float | None
    values: int
    rel_l2: float | None
    gain: float | None
    mean_bias: float | None


@dataclass(frozen=True)
class TileRow:
    """How many tiles have an error in [error_from, error_to): quarter octaves, and one from 0 for those without."""

    variant: int
    part: str
    error_from: float
    error_to: float
    tiles: int


@dataclass(frozen=True)
class WorstTileRow:
    """One of the worst tiles, rank 1 the worst. ``column`` counts in the part; inputs and outputs are JSON lists."""

    variant: int
    part: str
    rank: int
    error: float
    token: int
    column: int
    inputs: str
    outputs: str


@dataclass(frozen=True, kw_only=True)
class AttentionRow(VariantRow):
    """``attention.AttentionErrors`` against one reference ("bf16", "fp32"), and what was attended.

    context, top_k, queries, heads   tokens in the context, selected by a query, queries, heads of each
    entropy   of the reference's weights, in nats
    """

    against: str
    status: str
    reason: str | None = None
    context: int | None = None
    top_k: int | None = None
    queries: int | None = None
    heads: int | None = None
    entropy: float | None = None
    logit_rms: float | None = None
    logit_max: float | None = None
    kl_mean: float | None = None
    kl_p99: float | None = None
    kl_max: float | None = None
    output_rel_l2: float | None = None
    output_worst: float | None = None


@dataclass(frozen=True)
class ReaderTableRow:
    """``readers.ReaderRow`` of a format on a source."""

    format: str
    revision: str
    data: str
    reader: str
    values: int
    differing: int
    least_factor: float | None
    rel_l2: float | None
    snr_db: float | None
    gain: float | None


TABLES: dict[str, type] = {
    "errors": ErrorRow,
    "buckets": BucketRow,
    "tiles": TileRow,
    "worst_tiles": WorstTileRow,
    "attention": AttentionRow,
    "readers": ReaderTableRow,
}
"""Name of a table in the run folder → the dataclass of its rows."""
