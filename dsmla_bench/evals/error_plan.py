"""What an error run measures, checked before anything is computed or written."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsmla_bench.bench.manifest import describe, describe_device
from dsmla_bench.evals.codec import SCALE_ORIGINS, require_probes
from dsmla_bench.evals.data import KINDS, SIGMAS, Source, Synthetic
from dsmla_bench.evals.data_files import open_file
from dsmla_bench.evals.model_latents import ModelText
from dsmla_bench.kernels.formats import CacheFormat, Geometry, get_format
from dsmla_bench.places import Where
from dsmla_bench.results import Run, config_hash

DEFAULT_TOKENS = 4096


@dataclass(frozen=True)
class ErrorPlan:
    """Formats × data × providers × probes. Raises ValueError, in one sentence, for what cannot be measured.

    formats        names as ``get_format`` takes them
    data           kinds of ``data``, paths of files of latents, and folders of models
    sigmas         for every kind; () means the grid of ``data`` for normal and 1 for the others
    tokens         per source; None: all of a file, 4096 of a kind or of a model's layer
    seed           of kinds
    device         "cpu" or "cuda"
    providers      names of providers; "reference" runs anywhere, others on "cuda" only
    scales         origins of the scale of formats that keep it outside the cache, see ``codec.calibrate``
    latent_scales  powers of two that kv_c is multiplied by, see ``codec``
    only           "nope" or "rope" to quantize that part alone
    attention, readers   whether to measure what attention sees, and how readers differ
    text, trust_remote_code   what models read, see ``model_latents``, and whether code that comes with them may run
    """

    formats: tuple[str, ...]
    data: tuple[str, ...] = ("normal",)
    sigmas: tuple[float, ...] = ()
    tokens: int | None = None
    seed: int = 0
    device: str = "cpu"
    providers: tuple[str, ...] = ("reference",)
    scales: tuple[str, ...] = ("default",)
    latent_scales: tuple[float, ...] = (1.0,)
    only: str | None = None
    attention: bool = False
    readers: bool = False
    text: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for origin in self.scales:
            if origin not in SCALE_ORIGINS:
                raise ValueError(f"no scale origin {origin!r}; available: {', '.join(SCALE_ORIGINS)}")
        for sigma in self.sigmas:
            if not (math.isfinite(sigma) and sigma > 0):
                raise ValueError(f"sigma must be positive and finite, found {sigma:g}")
        require_probes(self.only, self.latent_scales)
        if not self.data:
            raise ValueError(f"no data named; available: {', '.join(KINDS)}, or a .npy, .pt or .safetensors file")
        for name in self.data:
            self._check(name)

    def _check(self, name: str) -> None:
        """Raise ValueError unless the data can be had for some format."""
        errors = []
        for geometry, _ in self.groups():
            try:
                if _is_model(name):
                    self._model(name).require(geometry, self.tokens or DEFAULT_TOKENS)
                else:
                    self.sources(name, geometry)
            except ValueError as error:
                errors.append(error)
            else:
                return
        raise errors[0]

    def groups(self) -> Iterator[tuple[Geometry, list[CacheFormat]]]:
        """The formats by the geometry of their tokens. Raises ValueError for an unknown one."""
        formats = [get_format(name) for name in self.formats]
        for geometry in dict.fromkeys(fmt.geometry or Geometry() for fmt in formats):
            yield geometry, [fmt for fmt in formats if (fmt.geometry or Geometry()) == geometry]

    def sources(self, name: str, geometry: Geometry) -> list[Source]:
        """The sources of one member of ``data``, in tokens of this geometry. Raises ValueError where it has none."""
        if name in KINDS:
            sigmas = self.sigmas or (SIGMAS if name == "normal" else (1.0,))
            return [Synthetic(name, sigma, self.tokens or DEFAULT_TOKENS, self.seed, geometry) for sigma in sigmas]
        if _is_model(name):
            model, tokens = self._model(name), self.tokens or DEFAULT_TOKENS
            model.require(geometry, tokens)
            return list(model.layers(tokens))
        if "." in name or "/" in name:
            return [open_file(Path(name), self.tokens, geometry)]
        raise ValueError(f"no data {name!r}; available: {', '.join(KINDS)}, or a .npy, .pt or .safetensors file")

    def _model(self, folder: str) -> ModelText:
        text = None if self.text is None else Path(self.text)
        return ModelText(Path(folder), text, self.device, self.trust_remote_code)

    @property
    def config(self) -> dict[str, Any]:
        """The plan as plain data."""
        return dataclasses.asdict(self)

    def create_run(self, out: Where) -> Run:
        """A new run folder below ``out`` with a manifest of kind "error"."""
        device = {"device": describe_device(0)} if self.device == "cuda" else {}
        manifest = {"kind": "error", "argv": sys.argv, "seed": self.seed, **describe(), **device}
        return Run.create(out, {**manifest, "config": self.config, "config_hash": config_hash(self.config)})


def _is_model(name: str) -> bool:
    return name not in KINDS and Path(name).is_dir()
