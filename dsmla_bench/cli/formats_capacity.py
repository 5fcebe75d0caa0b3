"""What ``dsmla-bench formats --model`` prints: how many tokens a GPU's memory caches in each format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dsmla_bench.cli.common import print_json, print_text, terminal_width
from dsmla_bench.cli.grid import fitted
from dsmla_bench.kernels.capacity import CachedModel, Capacity, capacity, find_cached_model
from dsmla_bench.kernels.formats import CacheFormat, get_format

UNITS = {"GB": 10**9, "GIB": 2**30, "MB": 10**6, "MIB": 2**20, "B": 1}


def byte_count(text: str, option: str) -> int:
    """``141GB`` or ``131.5 GiB`` → bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text, re.ASCII)
    if not match or match[2].upper() not in UNITS:
        raise ValueError(f"{option} must be a size such as 141GB or 131.5GiB, found {text!r}")
    return round(float(match[1]) * UNITS[match[2].upper()])


def print_capacity(
    model: str,
    memory: str | None,
    weights: str,
    mtp_layers: int,
    block_size: int,
    formats: Sequence[CacheFormat],
    *,
    as_json: bool,
) -> None:
    """Tokens by format. Raises ValueError for an unknown model and for memory that weights fill."""
    if memory is None:
        raise ValueError(f"--model {model} needs the memory of one GPU; give --memory, e.g. --memory 141GB")
    cached = find_cached_model(model).with_mtp(mtp_layers)
    left = byte_count(memory, "--memory") - byte_count(weights, "--weights")
    if left <= 0:
        raise ValueError(f"--weights {weights} leave nothing of --memory {memory} for the cache")
    held = {fmt.key: _held(fmt, cached, left, block_size) for fmt in formats}
    found = [answer for answer in held.values() if isinstance(answer, Capacity)]
    refused = {key: answer for key, answer in held.items() if isinstance(answer, str)}
    if as_json:
        print_json(_records(cached, left, found, refused))
    else:
        print_text(_text(cached, left, block_size, found, refused))


def _held(fmt: CacheFormat, model: CachedModel, cache_bytes: int, block_size: int) -> Capacity | str:
    """What the cache holds, or why the format cannot store the model's latents."""
    try:
        return capacity(fmt, model, cache_bytes, block_size)
    except ValueError as error:
        return str(error)


def _records(
    model: CachedModel, cache_bytes: int, found: Sequence[Capacity], refused: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "model": model.name,
        "layers": model.layers,
        "indexers": model.indexers,
        "kv_lora_rank": model.geometry.kv_lora_rank,
        "rope_dim": model.geometry.rope_dim,
        "cache_bytes": cache_bytes,
        "formats": [
            {
                "format": held.format.key,
                "block_size": held.block_size,
                "bytes_per_page": held.page_bytes,
                "bytes_per_token": held.bytes_per_token,
                "pages": held.pages,
                "tokens": held.tokens,
            }
            for held in found
        ],
        "refused": refused,
    }


def _text(
    model: CachedModel, cache_bytes: int, block_size: int, found: Sequence[Capacity], refused: Mapping[str, str]
) -> str:
    """A line per format: its row, one token over all layers, tokens that fit, and how that compares with bf16."""
    indexers = f"{model.indexers} with an indexer of 132 bytes a token" if model.indexers else "without an indexer"
    head = (
        f"{model.name}: {model.layers} layers of {model.geometry} values, {indexers}; "
        f"{cache_bytes / 1e9:.4g} GB of cache on one GPU in pages of {block_size} tokens"
    )
    bf16 = capacity(get_format("bf16"), model, cache_bytes, block_size).tokens
    lines = [["format", "B/token and layer", "B/token", "tokens", "against bf16"]]
    for held in found:
        row, ratio = held.format.row_bytes(model.geometry), f"{held.tokens / bf16:.2f}" if bf16 else "–"
        lines.append([held.format.key, str(row), f"{held.bytes_per_token:,.6g}", f"{held.tokens:,}", ratio])
    table = ["", *fitted(lines, right={1, 2, 3, 4}, width=terminal_width())] if found else []
    reasons = ["", *refused.values()] if refused else []
    return "\n".join([head, *table, *reasons])
