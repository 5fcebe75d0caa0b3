"""What the sparse MLA backends of vLLM 0.33 accept, as data: one ``Rule`` a line. ``selection`` is what reads it.

A rule says which spellings of ``--kv-cache-dtype`` a backend accepts on which GPUs, and which format they make it
store. vLLM looks a spelling up literally in the backend's list and renames it afterwards, so each one counts:
FLASHMLA_SPARSE has ``fp8`` and not ``fp8_e4m3``, and for head size 512 ``fp8_ds_mla`` and not its alias.

Sources, all vLLM 0.33: the backends' ``supported_kv_cache_dtypes``, ``get_supported_head_sizes``,
``get_supported_kernel_block_sizes`` and ``supports_combination`` (v1/attention/backends/mla/); the renaming in
``_canonicalize_sparse_mla_kv_cache_dtype`` (model_executor/layers/attention/mla_attention.py); the order in
``_get_backend_priorities`` (platforms/cuda.py). The head sizes of FLASHINFER_MLA_SPARSE_SM120 were read in a later
version. The lists were read, and no engine was started to confirm them.
"""

from __future__ import annotations

from dataclasses import dataclass

BF16_DTYPES = ("auto", "bfloat16")
"""Spellings that store bf16, except where a rule says otherwise."""

HEADS_FOR_FA4 = 16
"""Up to so many query heads vLLM prefers FLASH_ATTN_MLA_SPARSE_FA4 for a bf16 cache on compute capability 10.x."""


@dataclass(frozen=True)
class Rule:
    """Spellings of ``--kv-cache-dtype`` that make a backend store one format on some GPUs.

    majors          major compute capabilities
    format          the name of the format that is stored
    query           "bf16" or "fp8": the queries with which that cache is read
    head_sizes      latent and RoPE values of a token together: 576 (512 + 64), 512 (512 + 0); none for any
    block_multiple  tokens that a page holds a multiple of
    exact_block     whether a page holds exactly that many
    heads           fewest and most query heads of a GPU, or None for any
    """

    backend: str
    majors: tuple[int, ...]
    dtypes: tuple[str, ...]
    format: str
    query: str = "bf16"
    head_sizes: tuple[int, ...] = (576,)
    block_multiple: int = 64
    exact_block: bool = False
    heads: tuple[int, int] | None = None


RULES = (
    Rule("FLASH_ATTN_MLA_SPARSE", (9,), BF16_DTYPES, "bf16", head_sizes=()),
    Rule("FLASHMLA_SPARSE", (9,), BF16_DTYPES, "bf16", head_sizes=(512, 576)),
    Rule("FLASHMLA_SPARSE", (9,), ("fp8_ds_mla",), "fp8_ds_mla", head_sizes=(512, 576)),
    Rule("FLASHMLA_SPARSE", (9,), ("fp8",), "fp8_ds_mla"),
    Rule("FLASHMLA_SPARSE", (10,), BF16_DTYPES, "bf16"),
    Rule("FLASHMLA_SPARSE", (10,), ("fp8_ds_mla", "fp8"), "fp8_ds_mla", exact_block=True),
    Rule("FLASHMLA_SPARSE", (10,), ("nvfp4_ds_mla",), "nvfp4_ds_mla", exact_block=True),
    Rule("FLASHINFER_MLA_SPARSE_SM90", (9,), BF16_DTYPES, "bf16", head_sizes=(512, 576)),
    Rule("FLASHINFER_MLA_SPARSE_SM90", (9,), ("fp8", "fp8_e4m3"), "fp8", head_sizes=(512, 576)),
    Rule("FLASH_ATTN_MLA_SPARSE_FA4", (10,), BF16_DTYPES, "bf16", heads=(8, 128)),
    Rule("FLASHINFER_MLA_SPARSE", (10,), BF16_DTYPES, "bf16", head_sizes=(512, 576), block_multiple=32),
    Rule("FLASHINFER_MLA_SPARSE", (10,), ("fp8", "fp8_e4m3"), "fp8", "fp8", (512, 576), 32),
    Rule(
        "FLASHINFER_MLA_SPARSE_SM120",
        (12,),
        ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla"),
        "fp8_ds_mla",
        head_sizes=(512, 576),
    ),
)

BACKENDS = tuple(dict.fromkeys(rule.backend for rule in RULES))
DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla")
"""The spellings that some rule accepts."""

OTHER_DTYPES = {
    "float16": "its fp16 rows are no format of this package",
    "fp8_e5m2": "no sparse MLA backend of vLLM 0.33 accepts fp8_e5m2",
    "fp8_inc": "it is for Intel Gaudi",
    "nvfp4": "vLLM 0.33 has no plain nvfp4 for MLA models",
}
"""Spellings that vLLM knows and that resolve to nothing here, and why."""

OTHER_BACKENDS = {
    "FLASHMLA_MEGA_ATTN_DSV41": "it serves DeepSeek-V4.1 alone, whose cache holds records of two kinds",
    "FLASHMLA_SPARSE_DSV4": "it serves DeepSeek-V4 alone, whose cache holds records of its own",
    "FLASHINFER_MLA_SPARSE_DSV4": "it serves DeepSeek-V4 alone, whose cache holds records of its own",
    "FLASHINFER_MLA_SPARSE_DSV41": "it serves DeepSeek-V4.1 alone, whose cache holds records of two kinds",
    "TRITON_MLA_SPARSE": "vLLM 0.33 has no backend of that name",
}
"""Backends that one may ask for and that no rule describes, and why."""

CONDITIONS = {
    "FLASHMLA_SPARSE": "with decode context parallelism it needs fp8_ds_mla",
    "FLASHINFER_MLA_SPARSE": (
        "it needs index_topk, a qk_nope_head_dim of 128 or 192 (256 without RoPE), "
        "and no prefill together with decode context parallelism"
    ),
    "FLASHINFER_MLA_SPARSE_SM90": "it needs FlashInfer 0.6.18 or later and a kv_lora_rank of 512",
    "FLASHINFER_MLA_SPARSE_SM120": "it needs an index_topk of 2048",
    "FLASH_ATTN_MLA_SPARSE": "it cannot do decode context parallelism",
    "FLASH_ATTN_MLA_SPARSE_FA4": "it needs a top-k that is a multiple of 128",
}
"""What else a backend needs, which is not judged here."""

REVISIONS = {"0.33": {"fp8_ds_mla": "pow2"}, "0.30": {"fp8_ds_mla": "amax448"}}
"""The revision of a format that a vLLM version writes, where that is not simply the format's default."""


def priority(major: int, dtype: str, head_size: int, heads: int) -> tuple[str, ...]:
    """The backends that vLLM tries when none is named, in its order."""
    if major == 12:
        return ("FLASHINFER_MLA_SPARSE_SM120",)
    if major == 10 and dtype not in BF16_DTYPES:
        return ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
    if major == 10 and heads <= HEADS_FOR_FA4:
        return ("FLASH_ATTN_MLA_SPARSE_FA4", "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
    if major == 10:
        return ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")
    if head_size == 512:
        return ("FLASHINFER_MLA_SPARSE_SM90", "FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")
    return ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90")
