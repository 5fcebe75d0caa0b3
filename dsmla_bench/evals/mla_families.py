"""Which transformers models the simulated cache takes, by what they hand to their cache.

From transformers 5.18 on, the attention of every MLA model hands the cache the normalised latent [B, 1, S,
kv_lora_rank] as keys and the rotated key [B, 1, S, qk_rope_head_dim] as values, and expands what it gets back. That is
exactly what a row of a cache format holds. Older versions, and model code that comes with a checkpoint, hand over
expanded heads. ``FAMILIES`` are the models for which a test shows that the simulated cache changes nothing when it
stores bf16; others with the same hand-over work too.
"""

from __future__ import annotations

import inspect
from typing import Any

from dsmla_bench.kernels.formats import Geometry

TRANSFORMERS = "5.18"
"""The first version that hands the latent to the cache in dense and sparse MLA models alike."""

FAMILIES: dict[str, str] = {
    "axk1": "AXK1ForCausalLM",
    "axk2": "AXK2ForCausalLM",
    "bailing_hybrid": "BailingHybridForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "hy_v4": "HYV4ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "longcat_flash": "LongcatFlashForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "youtu": "YoutuForCausalLM",
}
"""model_type → the class that ``AutoModelForCausalLM`` makes."""

REFUSED: dict[str, str] = {
    "deepseek_v4": "DeepSeek-V4 caches compressed and windowed keys in records of its own, not the latent of every "
    "token, so no format here describes its cache",
    "dots3_note": "dots3_note has latents of two widths, and a format stores one",
}
"""model_type → why it cannot be simulated."""


def geometry_of(config: Any) -> Geometry:
    """The widths of a token's latent and RoPE key, from a transformers configuration.

    Raises ValueError, in one sentence, for a model without a latent cache and for one of ``REFUSED``.
    """
    text = config.get_text_config(decoder=True)
    name = str(text.model_type)
    for refused, why in REFUSED.items():
        if name.startswith(refused):
            raise ValueError(why)
    kv_lora_rank, rope_dim = getattr(text, "kv_lora_rank", None), getattr(text, "qk_rope_head_dim", None)
    if kv_lora_rank is None or rope_dim is None:
        raise ValueError(
            f"{name} has no latent cache: its configuration has no kv_lora_rank and qk_rope_head_dim, so cache formats "
            "of multi-head latent attention do not apply to it"
        )
    return Geometry(kv_lora_rank, rope_dim)


def cache_argument(model: Any) -> str:
    """What the model's ``forward`` calls its cache: ``cache`` in newer versions, before that ``past_key_values``.

    Raises ValueError for a model that takes none.
    """
    parameters = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise ValueError(f"{type(model).__name__}.forward takes no cache (neither cache nor past_key_values)")
