"""An error run: formats × data × providers × probes, streamed through the cache and back.

Every source is read once, chunk by chunk, and every format takes each chunk through its cache while it is there, so
memory is bounded by a chunk whatever the number of tokens, and drawing the data costs once. Tables are written after
every source: what a kill leaves is whole.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dsmla_bench.evals import attention
from dsmla_bench.evals.codec import Codec, calibrate, why_not
from dsmla_bench.evals.data import BLOCK_TOKENS, Source, chunks
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.evals.error_rows import (
    TABLES,
    AttentionRow,
    BucketRow,
    ErrorRow,
    ReaderTableRow,
    TileRow,
    VariantRow,
    WorstTileRow,
)
from dsmla_bench.evals.metrics import ErrorSums
from dsmla_bench.evals.readers import ReaderErrors, has_readers
from dsmla_bench.evals.tiles import Tiles, WorstTile
from dsmla_bench.kernels.formats import CacheFormat, Geometry, all_formats
from dsmla_bench.kernels.providers import Provider, load_providers
from dsmla_bench.results import Run, typed_frame

CHUNK_TOKENS = {"cpu": 4096, "cuda": 32768}
"""Tokens that go through the formats at once; figures do not depend on it."""
READ_AHEAD = {"cpu": 1, "cuda": 8}
PARTS = {"NoPE": ("NoPE",), "RoPE": ("RoPE",), "both": ("NoPE", "RoPE")}
ALWAYS_WRITTEN = ("errors", "buckets", "tiles", "worst_tiles")


@dataclass
class Variant:
    """A format by a provider with its probes: its codec and running sums."""

    codec: Codec
    row: VariantRow
    sums: ErrorSums
    tiles: Tiles
    seconds: float = 0.0

    def add(self, given: torch.Tensor, values: torch.Tensor, first_token: int) -> None:
        """Take a chunk through the cache; ``given`` bf16 [T, n + r], ``values`` the same in fp32."""
        started = time.perf_counter()
        read, clipped = self.codec(given)
        self.sums.add(values, read, clipped)
        self.tiles.add(values, read, first_token)
        if given.is_cuda:
            torch.cuda.synchronize(given.device)
        self.seconds += time.perf_counter() - started


@dataclass
class Session:
    """A run under way: what is measured, where, by whom, and the rows so far."""

    plan: ErrorPlan
    device: torch.device
    providers: dict[str, Provider]
    rows: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in TABLES})
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def write(self, run: Run) -> None:
        """Write the tables that have rows, and those that every run has."""
        for name, rows in self.rows.items():
            if rows or name in ALWAYS_WRITTEN:
                run.write_table(name, typed_frame(TABLES[name], rows))

    def skip(self, row: VariantRow, reason: str) -> None:
        """Append what stands for figures that there are none of."""
        self.rows["errors"] += [ErrorRow(**vars(row), part=part, status="skipped", reason=reason) for part in PARTS]


def execute(plan: ErrorPlan, run: Run) -> Iterator[str]:
    """Measure everything into ``run`` and finish it; yields the name of each source when it is done."""
    known = load_providers({})
    session = Session(plan, torch.device(plan.device), {name: known[name] for name in plan.providers})
    for geometry, formats in plan.groups():
        for name in plan.data:
            try:
                sources = plan.sources(name, geometry)
            except ValueError as error:  # a file of another geometry than these formats take
                for fmt in formats:
                    session.skip(_row(session, fmt, geometry, data=name, kind="file"), str(error))
                continue
            for source in sources:
                measure(session, source, formats)
                session.write(run)
                yield source.name
    session.write(run)
    run.finish()


def measure(session: Session, source: Source, formats: Sequence[CacheFormat]) -> None:
    """Stream one source through every variant and append their rows."""
    variants = list(_variants(session, source, formats))
    readers = [ReaderErrors(fmt, source.geometry) for fmt in _read_differently(session.plan, source.geometry)]
    kind = session.device.type
    for start, latents in chunks(source, CHUNK_TOKENS[kind], READ_AHEAD[kind]):
        given = latents.to(session.device).to(torch.bfloat16)
        values = given.float()
        for variant in variants:
            variant.add(given, values, start)
        for reader in readers:
            reader.add(given)
    for variant in variants:
        _record(session, variant)
    for reader in readers:
        names = (reader.fmt.name, reader.fmt.revision, source.name)
        session.rows["readers"] += [ReaderTableRow(*names, **dataclasses.asdict(row)) for row in reader.rows()]
    if session.plan.attention:
        _attend(session, source, variants)


def _read_differently(plan: ErrorPlan, geometry: Geometry) -> list[CacheFormat]:
    """The formats of this geometry that readers are known to differ on, in every revision."""
    if not plan.readers:
        return []
    return [fmt for fmt in all_formats() if fmt.geometry == geometry and has_readers(fmt, geometry)]


def _variants(session: Session, source: Source, formats: Sequence[CacheFormat]) -> Iterator[Variant]:
    """Every format × provider × scale origin × latent scale that can run; skipped rows for those that cannot."""
    plan, geometry = session.plan, source.geometry
    latent = slice(0, geometry.kv_lora_rank)
    parts = {"NoPE": latent, "RoPE": slice(latent.stop, latent.stop + geometry.rope_dim)}
    calibration = source.block(0).to(torch.bfloat16)
    axes = itertools.product(formats, session.providers.items(), plan.scales, plan.latent_scales)
    for fmt, (name, provider), origin, latent_scale in axes:
        if not fmt.external_scale and origin != plan.scales[0]:
            continue
        scale = None
        if fmt.external_scale:
            scaled = calibration.clone()
            scaled[:, latent] *= latent_scale
            scale = calibrate(origin, scaled)
        row = _row(
            session,
            fmt,
            geometry,
            provider=name,
            data=source.name,
            kind=source.kind,
            sigma=source.sigma,
            tokens=source.tokens,
            scale_origin=origin if fmt.external_scale else None,
            scale=scale,
            latent_scale=latent_scale,
        )
        reason = why_not(fmt, name, provider, session.device)
        if reason is not None:
            session.skip(row, reason)
            continue
        through = None if name == "reference" else provider
        codec = Codec(fmt, geometry, session.device, through, scale, latent_scale, plan.only)
        yield Variant(codec, row, ErrorSums(parts), Tiles(parts))


def _row(session: Session, fmt: CacheFormat, geometry: Geometry, **facts: Any) -> VariantRow:
    return VariantRow(
        variant=next(session.numbers),
        format=fmt.name,
        revision=fmt.revision,
        bytes_per_token=fmt.row_bytes(geometry),
        only=session.plan.only,
        **facts,
    )


def _record(session: Session, variant: Variant) -> None:
    """Append what a variant's sums say, part by part."""
    number = variant.row.variant
    for part, names in PARTS.items():
        figures = {**dataclasses.asdict(variant.sums.figures(*names)), "seconds": variant.seconds}
        tiles = variant.tiles.parts.get(part)
        if tiles:
            figures |= {f"tile_p{share}": tiles.quantile(share / 100) for share in (50, 90, 99)}
            figures |= {"tile_max": tiles.largest, "undefined_tiles": tiles.undefined}
            session.rows["tiles"] += [TileRow(number, part, *edges) for edges in tiles.octaves()]
            session.rows["worst_tiles"] += [
                _worst_tile(number, part, rank, tile) for rank, tile in enumerate(tiles.worst, start=1)
            ]
        session.rows["errors"].append(ErrorRow(**vars(variant.row), part=part, status="ok", **figures))
        buckets = variant.sums.buckets(*names)
        session.rows["buckets"] += [BucketRow(number, part, **dataclasses.asdict(bucket)) for bucket in buckets]


def _worst_tile(number: int, part: str, rank: int, tile: WorstTile) -> WorstTileRow:
    values = (json.dumps(tile.inputs), json.dumps(tile.outputs))
    return WorstTileRow(number, part, rank, tile.error, tile.token, tile.column, *values)


def _attend(session: Session, source: Source, variants: Sequence[Variant]) -> None:
    """Append what attention over the first tokens of the source sees of every variant."""
    blocks = min(math.ceil(source.tokens / BLOCK_TOKENS), attention.CONTEXT // BLOCK_TOKENS)
    latents = torch.cat([source.block(number) for number in range(blocks)])
    try:
        probe = attention.draw_queries(latents, source.geometry, session.plan.seed)
    except ValueError as error:
        session.rows["attention"] += [
            AttentionRow(**vars(variant.row), against=against, status="skipped", reason=str(error))
            for variant in variants
            for against in ("bf16", "fp32")
        ]
        return
    given = latents.to(torch.bfloat16)
    references = {"bf16": probe.attend(given), "fp32": probe.attend(latents)}
    context, top_k = len(latents), probe.selected.shape[1]
    for variant in variants:
        found = probe.attend(variant.codec(given.to(session.device))[0])
        for against, reference in references.items():
            figures = {"entropy": attention.entropy(reference), **vars(attention.compare(found, reference))}
            session.rows["attention"].append(
                AttentionRow(
                    **vars(variant.row),
                    against=against,
                    status="ok",
                    context=context,
                    top_k=top_k,
                    queries=attention.QUERIES,
                    heads=attention.HEADS,
                    **figures,
                )
            )
