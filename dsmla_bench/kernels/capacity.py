"""How many tokens a KV cache holds: layers, the indexer's cache, page padding and whole pages counted.

A cached token leaves one row in every attention layer and, in a model with sparse attention, one row of 132 bytes in
every layer that has an indexer of its own. A page of the cache is a page of each of these:

    page bytes = layers · format.page_bytes(block_size) + indexers · INDEXER_CACHE.page_bytes(block_size)
    tokens     = block_size · floor(cache bytes / page bytes)

Every GPU of a tensor-parallel group holds all of it, since the latent has one head: figures are those of one GPU. What
requests leave empty in their last pages is not subtracted, and neither are the blocks that an engine keeps back.

``PRESETS`` hold the widths and layers of released models; ``CachedModel.from_config`` reads them from a transformers
``config.json``. Layers for multi-token prediction count when they are served (``mtp_layers``); each has an indexer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.operations.indexer import INDEX_DIM, INDEXER_CACHE

MODEL_TYPES = (
    "axk1",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "minicpm3",
    "youtu",
)
"""The ``model_type`` of models in which every layer caches one latent per token."""

WIDTHS = ("num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim")
"""What a configuration has to say."""


@dataclass(frozen=True)
class CachedModel:
    """What one token leaves behind: ``layers`` rows of ``geometry``, and ``indexers`` rows of the indexer's cache.

    Raises ValueError for less than one layer, and for fewer indexers than none.
    """

    name: str
    layers: int
    indexers: int
    geometry: Geometry = Geometry()

    def __post_init__(self) -> None:
        if self.layers < 1 or self.indexers < 0:
            found = f"found {self.layers} and {self.indexers}"
            raise ValueError(f"{self.name} must have 1 layer or more and 0 indexers or more, {found}")

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any]) -> CachedModel:
        """From a transformers configuration. Raises ValueError where that does not say what is cached."""
        kind = config.get("model_type")
        if kind not in MODEL_TYPES:
            raise ValueError(f"{name} has the model_type {kind!r}; counted are {', '.join(MODEL_TYPES)}")
        missing = [key for key in WIDTHS if not isinstance(config.get(key), int)]
        if missing:
            raise ValueError(f"{name} has no whole number for {', '.join(missing)}; give the config.json of a model")
        if config.get("index_head_dim", INDEX_DIM) != INDEX_DIM:
            raise ValueError(f"{name} has an index_head_dim of {config['index_head_dim']}; counted is {INDEX_DIM}")
        layers, kv_lora_rank, rope_dim = (config[key] for key in WIDTHS)
        return cls(name, layers, _indexers(name, config, layers), Geometry(kv_lora_rank, rope_dim))

    def with_mtp(self, mtp_layers: int) -> CachedModel:
        """The model with so many layers for multi-token prediction, each with an indexer where the model has them."""
        indexers = self.indexers + (mtp_layers if self.indexers else 0)
        return replace(self, layers=self.layers + mtp_layers, indexers=indexers)


def _indexers(name: str, config: Mapping[str, Any], layers: int) -> int:
    """How many layers have an indexer of their own, as vLLM and transformers read it; others share the last one's."""
    if config.get("index_topk") is None:
        return 0
    kinds = config.get("indexer_types") or config.get("index_topk_pattern")
    if kinds:
        return sum(kind in ("full", "F") for kind in kinds)
    every = max(_number(name, config, "index_topk_freq", 1), 1)
    offset = _number(name, config, "index_skip_topk_offset", 2)
    return sum(max(layer - offset + 1, 0) % every == 0 for layer in range(layers))


def _number(name: str, config: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number of a configuration, ``default`` where it is absent or null. Raises ValueError."""
    value = config.get(key)
    if value is not None and not isinstance(value, int):
        raise ValueError(f"{name} has the {key} {value!r}; a whole number or none is counted")
    return default if value is None else value


PRESETS = {
    "deepseek-v3.2": CachedModel("DeepSeek-V3.2", 61, 61),
    "glm-5": CachedModel("GLM-5", 78, 78),
    "glm-5.2": CachedModel("GLM-5.2", 78, 21),
    "deepseek-v2-lite": CachedModel("DeepSeek-V2-Lite", 27, 0),
}
"""Layers and indexers of released models.

DeepSeek-V3.2 and GLM-5: the defaults of transformers' ``DeepseekV32Config`` and ``GlmMoeDsaConfig``. GLM-5.2: the same
with an indexer in the layers 0, 1, 2, 6, 10, … 74 (its ``indexer_types``). DeepSeek-V2-Lite: its ``config.json``.
"""


def find_cached_model(text: str) -> CachedModel:
    """A preset by name, or the model of a ``config.json`` or of a folder that holds one.

    Raises ValueError for anything else, and for a file that is no configuration of a model with a latent cache.
    """
    if text.lower() in PRESETS:
        return PRESETS[text.lower()]
    path = Path(text) / "config.json" if Path(text).is_dir() else Path(text)
    if not path.is_file():
        raise ValueError(f"no model {text!r}; give one of {', '.join(PRESETS)}, or the path of a config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON ({error}); give the config.json of a model") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object; give the config.json of a model")
    return CachedModel.from_config(text, config)


@dataclass(frozen=True)
class Capacity:
    """What a cache of some size holds in one format.

    page_bytes  bytes of a page of ``block_size`` tokens over all layers, the indexers' pages included
    pages       whole pages that fit
    """

    format: CacheFormat
    block_size: int
    page_bytes: int
    pages: int

    @property
    def tokens(self) -> int:
        """Tokens in whole pages."""
        return self.pages * self.block_size

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token over all layers, with its share of page padding."""
        return self.page_bytes / self.block_size


def capacity(fmt: CacheFormat, model: CachedModel, cache_bytes: int, block_size: int = 64) -> Capacity:
    """Pages and tokens of ``fmt`` in ``cache_bytes``.

    Raises ValueError where it cannot store the model's latents, and for pages of less than one token.
    """
    latents = model.layers * fmt.page_bytes(block_size, model.geometry)
    page_bytes = latents + model.indexers * INDEXER_CACHE.page_bytes(block_size, Geometry(INDEX_DIM, 0))
    return Capacity(fmt, block_size, page_bytes, cache_bytes // page_bytes)
