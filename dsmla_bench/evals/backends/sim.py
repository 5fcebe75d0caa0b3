"""This process: a transformers model whose latents pass through the format's own bytes (``simulated_cache``).

The model is loaded once, when its first variant is opened, and all variants are computed by the same object.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from dsmla_bench.error_text import first_line
from dsmla_bench.evals.accuracy_rows import FidelityTableRow, fidelity_rows
from dsmla_bench.evals.backends import Variant, other_batch_size
from dsmla_bench.evals.fidelity import FLOOR, fidelity
from dsmla_bench.evals.latents import LatentRow
from dsmla_bench.evals.lm_eval_model import Float32LogitsLM
from dsmla_bench.evals.mla_families import geometry_of
from dsmla_bench.evals.model_files import tokenizer_sha256, weights_sha256
from dsmla_bench.evals.simulated_cache import CacheVariant, Prefill, attach
from dsmla_bench.evals.windows import token_windows
from dsmla_bench.kernels.formats import CacheFormat, Geometry, get_format

CODEC_TOKENS = 64


@dataclass(frozen=True)
class SimBackend:
    """``model``, ``tokenizer``: their folders; ``batch_size``: a number or "auto".

    ``max_length``: of a context, in tokens, None for the model's own; ``prefill``: as in ``simulated_cache``.
    ``device``: "cpu" or "cuda" (all GPUs, if the model needs them).
    """

    model: Path
    tokenizer: Path
    device: str = "cpu"
    batch_size: int | str = 8
    max_length: int | None = None
    prefill: Prefill = "cache"
    trust_remote_code: bool = False
    name: str = "sim"

    def cache_format(self, variant: Variant) -> CacheFormat:
        """What the variant is called."""
        return get_format(variant.format)

    def why_not(self, variant: Variant) -> str | None:
        """A format cannot store latents of any width."""
        try:
            get_format(variant.format).require(self.geometry)
        except ValueError as error:
            return str(error)
        return None

    def check(self, variants: Sequence[Variant]) -> None:
        """Raise ValueError for a model that has no latents, or more code than is trusted; its weights are not read."""
        assert self.geometry

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Weights, tokenizer, what the format makes of latents, and how the model is run."""
        return {
            "model_sha256": weights_sha256(self.model),
            "tokenizer_sha256": tokenizer_sha256(self.tokenizer),
            "codec_sha256": codec_sha256(get_format(variant.format), self.geometry),
            "only": variant.only,
            "prefill": self.prefill,
            "device": self.device,
            "batch_size": self._batch_size(variant),
            "max_length": self.max_length,
        }

    @contextlib.contextmanager
    def open(self, variant: Variant) -> Iterator[Float32LogitsLM]:
        """The model with its cache in the variant's format."""
        with attach(self.loaded, cache_variant(variant), prefill=self.prefill):
            yield Float32LogitsLM(self.loaded, self.loaded_tokenizer, self._batch_size(variant), self.max_length)

    def fidelity(
        self, variants: Sequence[Variant], tasks: Mapping[str, Any], windows: int, tokens: int
    ) -> tuple[list[FidelityTableRow], list[LatentRow]] | None:
        """How far every variant moves the model's predictions on ``windows`` windows of the tasks' text."""
        longest = self.loaded.config.get_text_config(decoder=True).max_position_embeddings
        ids = token_windows(tasks, self.loaded_tokenizer, windows, min(tokens, longest))
        if not len(ids):
            return None
        caches = [cache_variant(variant) for variant in variants]
        batch_size = self.batch_size if isinstance(self.batch_size, int) else 1
        found = fidelity(self.loaded, ids, caches, batch_size=batch_size, prefill=self.prefill)
        return fidelity_rows(found, FLOOR, FLOOR), list(found.latents)

    @functools.cached_property
    def geometry(self) -> Geometry:
        """Of the model's latents. Raises ValueError when it has none."""
        return geometry_of(self._from_pretrained(transformers.AutoConfig, self.model))

    @functools.cached_property
    def loaded(self) -> Any:
        """The model, in the type that its checkpoint has, in evaluation mode."""
        placed = "auto" if self.device == "cuda" else self.device
        named = {"dtype": "auto", "device_map": placed, "use_safetensors": True}
        return self._from_pretrained(transformers.AutoModelForCausalLM, self.model, **named).eval()

    @functools.cached_property
    def loaded_tokenizer(self) -> Any:
        """The tokenizer."""
        return self._from_pretrained(transformers.AutoTokenizer, self.tokenizer)

    def _from_pretrained(self, auto_class: Any, folder: Path, **named: Any) -> Any:
        """What transformers finds in the folder. Raises ValueError where it finds nothing that it knows."""
        try:
            return auto_class.from_pretrained(folder, trust_remote_code=self.trust_remote_code, **named)
        except (ValueError, KeyError, OSError) as error:
            hint = "" if self.trust_remote_code else "; code that comes with it is run with --trust-remote-code only"
            raise ValueError(f"{folder}: transformers cannot load it ({first_line(error)}){hint}") from error

    def _batch_size(self, variant: Variant) -> int | str:
        return other_batch_size(self.batch_size) if variant.repeat else self.batch_size


def cache_variant(variant: Variant) -> CacheVariant:
    """The variant as the simulated cache takes it."""
    return CacheVariant(get_format(variant.format), variant.only)


@functools.cache
def codec_sha256(fmt: CacheFormat, geometry: Geometry) -> str:
    """SHA-256 of the rows that the format makes of fixed latents, and of what it reads from them.

    The latents are normal, each token scaled by a power of two from 2^-16 to 2^15, so that every scale rule shows.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(CODEC_TOKENS, geometry.kv_lora_rank + geometry.rope_dim, generator=generator)
    values *= torch.exp2((torch.arange(CODEC_TOKENS) % 32 - 16).float())[:, None]
    kv_c, k_pe = values.to(torch.bfloat16).split([geometry.kv_lora_rank, geometry.rope_dim], dim=-1)
    scale = torch.ones(1) if fmt.external_scale else None
    rows = fmt.quantize(kv_c.contiguous(), k_pe.contiguous(), scale)
    digest = hashlib.sha256(rows.numpy().tobytes())
    for part in fmt.dequantize(rows, geometry, scale):
        digest.update(part.float().numpy().tobytes())
    return digest.hexdigest()
