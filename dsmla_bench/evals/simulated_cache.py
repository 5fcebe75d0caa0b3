"""The simulated cache: a transformers model whose latents pass through a format's own bytes.

    with attach(model, get_format("nvfp4_ds_mla")):
        model(tokens).logits                # prefill reads what the cache gives back
        model.generate(tokens, num_beams=4)

Inside, every ``forward`` and ``generate`` of the model uses a ``SimulatedCache``. Its ``update`` takes what the model
hands to its cache, the normalised latent and the rotated key of the new tokens, rounds both to bf16, writes them as
rows of the format, reads the rows, and gives attention what a reader gets, for prefill and decode, beams included.
Everything else of the model is as it was; the indexer of sparse models keeps its own cache, alike for all formats.

    prefill "cache"  attention reads the tokens of its own call from the cache too (what sparse MLA backends do)
    prefill "fresh"  calls of more than one token read their own tokens as they were, earlier ones from the cache (what
                     dense MLA backends do); a single prefill then shows nothing of the format
    codec "kernels"  through this project's Triton write and gather kernels on a paged cache; the default on CUDA
    codec "torch"    through the format's reference, on any device; the default elsewhere. Both give the same bits

What is simulated is the error of the format. What kernels lose by the order or the precision of their sums is not.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from transformers import DynamicCache

from dsmla_bench.evals.codec import ABLATIONS, Codec, require_probes, why_not
from dsmla_bench.evals.mla_families import TRANSFORMERS, cache_argument, geometry_of
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.providers import Provider, load_providers

Prefill = Literal["cache", "fresh"]
CodecName = Literal["torch", "kernels"]


@dataclass(frozen=True)
class CacheVariant:
    """A format as the cache of a model, with its probes.

    only          "nope" or "rope": that part alone is quantized
    scales        of formats whose scale lies outside the cache: one for all layers, or one per layer, by layer index
    scale_origin  where ``scales`` come from: "default", or a rule of ``codec.calibrate``
    latent_scale  a power of two that kv_c is multiplied by before the cache and divided by after it

    Raises ValueError for another part, no scale or one that is not positive, and another latent scale.
    """

    fmt: CacheFormat
    only: str | None = None
    scales: tuple[float, ...] = (1.0,)
    scale_origin: str = "default"
    latent_scale: float = 1.0

    def __post_init__(self) -> None:
        require_probes(self.only, (self.latent_scale,))
        if not self.scales or not all(0 < scale < float("inf") for scale in self.scales):
            raise ValueError(f"scales must be positive and finite, one at least, found {self.scales}")

    @property
    def name(self) -> str:
        """``nvfp4_ds_mla``, ``nvfp4_ds_mla:up`` for a revision that is no default, ``nvfp4_ds_mla (NoPE only)``."""
        probes = [ABLATIONS[self.only]] if self.only else []
        if self.fmt.external_scale and self.scale_origin != "default":
            probes.append(f"{self.scale_origin} scale")
        if self.latent_scale != 1.0:
            probes.append(f"latent × {self.latent_scale:g}")
        name = self.fmt.name if self.fmt.default else self.fmt.key
        return f"{name} ({', '.join(probes)})" if probes else name

    def scale(self, layer: int) -> float | None:
        """The layer's scale; None for formats that keep all scales in their rows."""
        if not self.fmt.external_scale:
            return None
        return self.scales[layer] if len(self.scales) > 1 else self.scales[0]


def as_variant(fmt: CacheFormat | CacheVariant) -> CacheVariant:
    """A format is the variant of it without probes."""
    return fmt if isinstance(fmt, CacheVariant) else CacheVariant(fmt)


class LatentCache(DynamicCache):
    """A cache of latents that passes the new tokens of every update through ``self.through``.

    Raises ValueError at the first update of a model that does not hand over its latents, with what to install.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.geometry = geometry_of(config)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latent [B, 1, S, n] and RoPE key [B, 1, S, r] of new tokens → both of all tokens, as attention gets them."""
        require_latents(self.geometry, key_states, value_states)
        read = self.through(layer_idx, key_states, value_states)
        kept = super().update(*read, layer_idx, *args, **kwargs)
        return self.attended(kept, (key_states, value_states))

    def through(self, layer: int, kv_c: torch.Tensor, k_pe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the cache keeps of kv_c [B, 1, S, n] and k_pe [B, 1, S, r]. Here: themselves."""
        return kv_c, k_pe

    def attended(
        self, kept: tuple[torch.Tensor, torch.Tensor], fresh: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention gets of all tokens kept and the new ones as they came. Here: what was kept."""
        return kept


class SimulatedCache(LatentCache):
    """The cache of one batch, in a format; the module docstring says how it behaves.

    Raises ValueError for a format that cannot store the model's latents, and for kernels that cannot run here.
    """

    def __init__(
        self,
        config: Any,
        fmt: CacheFormat | CacheVariant,
        *,
        prefill: Prefill = "cache",
        codec: CodecName | None = None,
    ) -> None:
        super().__init__(config)
        if prefill not in ("cache", "fresh"):
            raise ValueError(f"prefill must be cache or fresh, found {prefill!r}")
        self.variant, self.prefill, self.codec_name = as_variant(fmt), prefill, codec
        self.variant.fmt.require(self.geometry)
        self._codecs: dict[tuple[torch.device, float | None], Codec] = {}

    def through(self, layer: int, kv_c: torch.Tensor, k_pe: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a reader gets of the rows of these tokens, in their own type."""
        read = self._codec(layer, kv_c.device).read(as_values(kv_c, k_pe)).to(kv_c.dtype)
        latent, rope = read.view(*kv_c.shape[:-1], -1).split([self.geometry.kv_lora_rank, self.geometry.rope_dim], -1)
        return latent, rope

    def attended(
        self, kept: tuple[torch.Tensor, torch.Tensor], fresh: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All tokens from the cache, or the new ones of a prefill as they came."""
        new = fresh[0].shape[-2]
        if self.prefill == "cache" or new == 1:
            return kept
        latent, rope = (torch.cat([all_[..., :-new, :], own], -2) for all_, own in zip(kept, fresh, strict=True))
        return latent, rope

    def _codec(self, layer: int, device: torch.device) -> Codec:
        key = (device, self.variant.scale(layer))
        if key not in self._codecs:
            self._codecs[key] = codec_of(self.variant, layer, self.geometry, device, self.codec_name)
        return self._codecs[key]


def attach(
    model: Any,
    fmt: CacheFormat | CacheVariant | None,
    *,
    prefill: Prefill = "cache",
    codec: CodecName | None = None,
) -> contextlib.AbstractContextManager[None]:
    """While it is entered, every forward and generate of a transformers model uses a simulated cache.

    ``fmt`` None leaves the model as it is. Raises ValueError, before anything is computed, for a model without latents
    and for a format that cannot store them; at the first update for a transformers version that is too old.
    """
    if fmt is None:
        return contextlib.nullcontext()
    variant, config = as_variant(fmt), model.config

    def make() -> SimulatedCache:
        return SimulatedCache(config, variant, prefill=prefill, codec=codec)

    make()  # for its errors, before anything is computed
    return attached(model, make)


@contextlib.contextmanager
def attached(model: Any, make: Callable[[], LatentCache]) -> Iterator[None]:
    """While it is entered, every call of the model without a cache, or with an empty one, gets one from ``make``."""
    name = cache_argument(model)
    made: weakref.WeakSet[LatentCache] = weakref.WeakSet()
    replaced: weakref.WeakSet[DynamicCache] = weakref.WeakSet()

    def before_forward(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = kwargs.pop("past_key_values", None)
        given = kwargs.pop("cache", None) if given is None else given
        if given is None or given not in made:
            if given is not None:
                _require_replaceable(given, replaced)
                replaced.add(given)
            given = make()
            made.add(given)
        return args, {**kwargs, name: given}

    handle = model.register_forward_pre_hook(before_forward, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _require_replaceable(given: Any, replaced: weakref.WeakSet[DynamicCache]) -> None:
    """Raise ValueError unless ``given`` is an empty dynamic cache, as ``generate`` makes one, that is new here."""
    if type(given) is not DynamicCache:
        raise ValueError(f"the simulated cache stands in for a DynamicCache, and the model was given a {type(given)}")
    if given in replaced or given.get_seq_length() > 0:
        raise ValueError(
            "the model was given a cache that the simulated one did not fill; go on with the cache of the last output"
        )


def codec_of(
    variant: CacheVariant, layer: int, geometry: Geometry, device: torch.device, name: CodecName | None = None
) -> Codec:
    """The codec of a layer's latents; ``name`` None: kernels on CUDA, torch elsewhere.

    Raises ValueError for kernels that cannot run on the device.
    """
    if name not in (None, "torch", "kernels"):
        raise ValueError(f"codec must be torch or kernels, found {name!r}")
    provider = None
    if name == "kernels" or (name is None and device.type == "cuda"):
        provider = kernels()
        reason = why_not(variant.fmt, "triton", provider, device)
        if reason is not None:
            raise ValueError(f'{reason}; codec "torch" gives the same bits')
    return Codec(variant.fmt, geometry, device, provider, variant.scale(layer), variant.latent_scale, variant.only)


@functools.cache
def kernels() -> Provider:
    """This project's kernels. Kept, because a model gets a cache for every call, and looking for providers is slow."""
    return load_providers({})["triton"]


def as_values(kv_c: torch.Tensor, k_pe: torch.Tensor) -> torch.Tensor:
    """kv_c [B, 1, S, n] and k_pe [B, 1, S, r] as what kernels are given: bf16 [B · S, n + r]."""
    return torch.cat([kv_c, k_pe], dim=-1).flatten(0, -2).to(torch.bfloat16)


def require_latents(geometry: Geometry, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
    """Raise ValueError unless these are the latent and the RoPE key of one shared head."""
    expected = ((1, geometry.kv_lora_rank), (1, geometry.rope_dim))
    if tuple((states.shape[1], states.shape[-1]) for states in (key_states, value_states)) != expected:
        raise ValueError(
            f"this model hands its cache keys {list(key_states.shape)} and values {list(value_states.shape)} in place "
            f"of latents [B, 1, S, {geometry.kv_lora_rank}] and RoPE keys [B, 1, S, {geometry.rope_dim}]; transformers "
            f"does from {TRANSFORMERS} on, for its own model classes, and this is {transformers.__version__}: "
            f"pip install 'transformers>={TRANSFORMERS}', and load the model without trust_remote_code"
        )
