"""An installed vLLM: a process of its own for every format, whose ``kv_cache_dtype`` is passed through.

The names are vLLM's: its sparse MLA backend serves ``fp8`` as ``fp8_ds_mla``, so a run of ``fp8`` is what vLLM makes of
that word. Revisions of a format are whatever the installed vLLM writes; its version is in the run's manifest.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dsmla_bench.bench.manifest import find_device
from dsmla_bench.evals.backends import Variant, other_batch_size
from dsmla_bench.evals.backends.process_model import ProcessModel
from dsmla_bench.evals.model_files import tokenizer_sha256, weights_sha256
from dsmla_bench.kernels import selection
from dsmla_bench.kernels.formats import CacheFormat, get_format

KV_CACHE_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla", "nvfp4_ds_mla": "nvfp4_ds_mla"}
"""Format → what vLLM calls it."""


@dataclass(frozen=True)
class VllmBackend:
    """``model``, ``tokenizer``: their folders; ``engine``: further arguments of vLLM's ``LLM``.

    ``batch_size``: prompts handed to vLLM at once, "auto" for all.
    """

    model: Path
    tokenizer: Path
    batch_size: int | str = "auto"
    max_length: int | None = None
    trust_remote_code: bool = False
    engine: Mapping[str, Any] = field(default_factory=dict)
    name: str = "vllm"
    geometry: None = None

    def cache_format(self, variant: Variant) -> CacheFormat:
        """What the variant is called."""
        return get_format(variant.format)

    def why_not(self, variant: Variant) -> str | None:
        """vLLM's own names of formats only, on a GPU for which it has kernels."""
        if variant.only:
            return "vLLM stores whole tokens; parts can be probed with --backend sim"
        name, _, revision = variant.format.partition(":")
        if name not in KV_CACHE_DTYPES:
            return f"vLLM has no cache format {name}; it has {', '.join(KV_CACHE_DTYPES)}"
        if revision:
            return f"vLLM writes the revision that its version has; name the format without {':' + revision!r}"
        return why_not_here(name)

    def check(self, variants: Sequence[Variant]) -> None:
        """Raise ValueError unless vLLM is installed."""
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(
                "--backend vllm needs vLLM, not installed here; install it, or use --backend sim or server"
            )

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Weights, tokenizer, vLLM's version and its arguments."""
        return {
            "model_sha256": weights_sha256(self.model),
            "tokenizer_sha256": tokenizer_sha256(self.tokenizer),
            "vllm": version("vllm"),
            "arguments": {name: value for name, value in self._arguments(variant).items() if name not in PATHS},
        }

    def fidelity(self, variants: Sequence[Variant], tasks: Mapping[str, Any], windows: int, tokens: int) -> None:
        """None: it returns the log-probabilities of given tokens, not whole distributions."""
        return None

    @contextlib.contextmanager
    def open(self, variant: Variant) -> Iterator[ProcessModel]:
        """lm-eval's vLLM model in a new process, which ends with the context."""
        lm = ProcessModel("vllm", self._arguments(variant))
        try:
            yield lm
        finally:
            lm.close()

    def _arguments(self, variant: Variant) -> dict[str, Any]:
        return {
            "pretrained": str(self.model),
            "tokenizer": str(self.tokenizer),
            "kv_cache_dtype": KV_CACHE_DTYPES[variant.format],
            "batch_size": other_batch_size(self.batch_size) if variant.repeat else self.batch_size,
            "max_model_len": self.max_length,
            "trust_remote_code": self.trust_remote_code,
            "load_format": "safetensors",
            **self.engine,
        }


PATHS = ("pretrained", "tokenizer")
"""Arguments that name places, where hashes say what is in them."""


def why_not_here(name: str) -> str | None:
    """Why vLLM cannot serve the format on this machine's GPU, in one sentence; None when it can."""
    found = find_device()
    if found is None:
        return f"vLLM serves {name} from a GPU, and this machine has none; use --backend sim"
    return selection.why_not(name, found[1])
