"""What others have published of the accuracy of KV-cache formats, with what each difference could show at all.

Scores are as published; accuracies as shares of 1. Nearly all are of one run of each format without the answers to
single questions, so a difference has the standard error of two independent scores:

    accuracy   sqrt(s (1 - s) / (questions - 1)) each. Repeats of a question are not further questions, so they are not
               counted; where they were averaged, the true error is somewhat smaller
    KL         the published standard deviation over repeats / sqrt(repeats) each

``resolution`` is the smallest difference that such a comparison shows with 80 % power: a published difference below it
says little, in either direction. Rows without scores are there for what was claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsmla_bench.evals.paired_statistics import detectable, share_error, unpaired_p

SGLANG = "SGLang documentation"
TENSORRT = "TensorRT-LLM gsm8k.yaml"
FP8_WEIGHTS = "Llama-3.1-8B-Instruct with FP8 weights"
EIGHT_SHOT = "8-shot at temperature 0.6"
QWEN35 = ("SGLang PR 21601", "Qwen3.5-35B-A3B (MHA)", "gsm8k")
LOCAL = "local-inference-lab/vllm"
INFERRED = "five repeats, inferred from the scores"
KV_KLD = "KL against the BF16 model; quantized weights are in both"


@dataclass(frozen=True)
class Published:
    """One published comparison. ``baseline`` and ``format`` say what the KV cache stored.

    metric                    "accuracy" or "KL" (mean, nats)
    documents, repeats        questions or positions, and how often each was asked; None where unknown
    baseline_spread, spread   standard deviations over repeats of the whole evaluation, where published
    """

    source: str
    model: str
    benchmark: str
    baseline: str
    baseline_score: float | None
    format: str
    score: float | None
    documents: int | None = None
    repeats: int = 1
    baseline_spread: float | None = None
    spread: float | None = None
    metric: str = "accuracy"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedRow(Published):
    """A published comparison with its delta (format minus baseline), and what that delta rests on. None: undefined."""

    delta: float | None
    error: float | None
    resolution: float | None
    p: float | None


def rows() -> list[PublishedRow]:
    """All rows, in the order of COMPARISONS."""
    return [_with_resolution(row) for row in COMPARISONS]


def _with_resolution(row: Published) -> PublishedRow:
    delta = None if row.score is None or row.baseline_score is None else row.score - row.baseline_score
    sides = ((row.baseline_score, row.baseline_spread), (row.score, row.spread))
    errors = [_error(row, score, spread) for score, spread in sides]
    error = None if None in errors else math.hypot(*(each for each in errors if each is not None))
    known = delta is not None and bool(error)
    return PublishedRow(
        **vars(row),
        delta=delta,
        error=error,
        resolution=detectable(error) if error else None,
        p=unpaired_p(delta, error) if known and delta is not None and error else None,
    )


def _error(row: Published, score: float | None, spread: float | None) -> float | None:
    if spread is not None:
        return spread / math.sqrt(row.repeats)
    if row.metric != "accuracy" or score is None or row.documents is None:
        return None
    return share_error(score, row.documents)


def _sglang(
    model: str, pull: int, benchmark: str, documents: int, repeats: int, scores: tuple[float, float, float]
) -> tuple[Published, Published]:
    """A row of SGLang's table: bf16 against fp8 and against its own fp4 (e2m1, one scale for 16)."""
    bf16, *others = scores
    source, note = f"{SGLANG}, PR {pull}", INFERRED if repeats > 1 else ""
    fp8, fp4 = (
        Published(source, model, benchmark, "bf16", bf16, name, score, documents, repeats, note=note)
        for name, score in zip(("fp8_e4m3", "fp4_e2m1"), others, strict=True)
    )
    return fp8, fp4


R1, QWEN, OSS = "DeepSeek-R1-0528", "Qwen3-235B-A22B (MHA)", "GPT-OSS-120B (MHA)"

COMPARISONS: tuple[Published, ...] = (
    Published(
        "vLLM PR 51724", "GLM-5.2 and DeepSeek-V3.2", "end to end", "–", None, "nvfp4_ds_mla", None,
        note='"passed"; no score is published',
    ),
    Published(
        "NVIDIA blog, 2025-12-08", "several", "code, knowledge, long context", "bf16 and fp8", None, "nvfp4", None,
        note='"less than 1 % accuracy loss"; the scores are in figures only',
    ),
    *_sglang(R1, 10078, "gsm8k", 1319, 1, (0.9157, 0.9154, 0.9124)),
    *_sglang(R1, 10078, "aime25", 30, 5, (0.5067, 0.4934, 0.4000)),
    *_sglang(R1, 10078, "gpqa_diamond", 198, 5, (0.7707, 0.7697, 0.7273)),
    *_sglang(QWEN, 12612, "gsm8k", 1319, 1, (0.9168, 0.9181, 0.9186)),
    *_sglang(QWEN, 12612, "aime25", 30, 5, (0.7733, 0.7333, 0.6000)),
    *_sglang(QWEN, 12612, "gpqa_diamond", 198, 5, (0.7010, 0.6899, 0.6778)),
    *_sglang(OSS, 12612, "gsm8k", 1319, 1, (0.9161, 0.9163, 0.9152)),
    *_sglang(OSS, 12612, "aime25", 30, 5, (0.7533, 0.7667, 0.3533)),
    *_sglang(OSS, 12612, "gpqa_diamond", 198, 5, (0.5081, 0.5434, 0.3202)),
    Published(*QWEN35, "bf16", 0.9710, "fp8", 0.9695, 1319, note=EIGHT_SHOT),
    Published(*QWEN35, "bf16", 0.9710, "nvfp4", 0.9718, 1319, note=EIGHT_SHOT),
    Published(TENSORRT, "Llama-3.1-8B (MHA)", "gsm8k", "bf16", 0.7430, "fp8", 0.7285, 1319, note=FP8_WEIGHTS),
    Published(TENSORRT, "Llama-3.1-8B (MHA)", "gsm8k", "bf16", 0.7430, "nvfp4", 0.6975, 1319, note=FP8_WEIGHTS),
    Published(
        "FlashInfer PR 3937", "DeepSeek-V4-Flash", "HumanEval", "fp8_ds_mla", 139 / 164, "nvfp4_ds_mla", 148 / 164, 164,
        note='"margin of error", its author says',
    ),
    Published(
        "FlashInfer PR 3937", "DeepSeek-V4-Flash", "MBPP", "fp8_ds_mla", 0.92, "nvfp4_ds_mla", 0.94, 100,
        note='"margin of error", its author says',
    ),
    Published(
        "vLLM issue 54426", "Qwen3.8-Flash-Next", "gsm8k", "bf16", 0.97, "fp8", 0.96, 100,
        note="paired: one document differs, McNemar p 1.0",
    ),
    Published(
        "vLLM PR 42316", "DeepSeek-V4-Flash", "gpqa_diamond", "fp8", 0.4899, "fp8, run again", 0.4747, 198,
        note="same settings before and after a rebase: how far repeats drift",
    ),
    Published(
        f"{LOCAL} issue 144", "GLM-5.2", "WikiText-2, 2048 tokens", "fp8_ds_mla", 0.1263,
        "nvfp4, outer scale, bf16 RoPE", 0.1345, None, 5, 0.0030, 0.0035, "KL", KV_KLD,
    ),
    Published(
        f"{LOCAL} issue 144", "GLM-5.2", "WikiText-2, 2048 tokens", "fp8_ds_mla", 0.1263,
        "nvfp4, outer scale, fp8 RoPE", 0.1356, None, 5, 0.0030, 0.0054, "KL", KV_KLD,
    ),
    Published(
        f"{LOCAL} issue 144", "GLM-5.2", "WikiText-2, 2048 tokens", "fp8_ds_mla", 0.1263,
        "nvfp4, bf16 RoPE", 0.158, None, 5, 0.0030, None, "KL", KV_KLD,
    ),
    Published(
        f"{LOCAL} issue 144", "GLM-5.2", "WikiText-2, 2048 tokens", "fp8_ds_mla", 0.1263,
        "nvfp4, fp8 RoPE", 0.168, None, 5, 0.0030, None, "KL", KV_KLD,
    ),
    Published(
        "local-inference-lab/b12x issue 33", "GLM-5.2", "teacher forced", "nvfp4", 0.184,
        "nvfp4, an outer scale per layer", 0.152, metric="KL", note="needle at 64K: 15 of 15 both",
    ),
    Published(
        "brandonmmusic-max/glm-5.3-flash-exl3-4bpw", "GLM-5.3-Flash", "2047 positions", "fp8", 0.0246,
        "nvfp4", 0.0548, 2047, 5, metric="KL", note="nvfp4: 0.0548 to 0.0605 over five boots; top-1 0.938 and 0.915",
    ),
    Published(
        "local-inference-lab/rtx6kpro issue 73", "GLM-5.2, 3.5 bits per weight", "teacher forced", "fp8", 0.0597,
        "nvfp4", 0.0692, metric="KL", note="five boots and four",
    ),
    Published(
        f"{LOCAL} issue 182", "GLM-5.2", "2048 tokens", "–", None, "nvfp4, fp8 RoPE", None, metric="KL",
        note="retrieval at 350k tokens fails while KL at 2048 sees no difference (0.1654 and 0.1638)",
    ),
)  # fmt: skip
"""Accuracy first, then KL, which is against the BF16 model and so holds the error of quantized weights too."""
