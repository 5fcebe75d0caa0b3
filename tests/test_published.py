"""The published table: the figures that were computed by hand for it, and nothing without a source."""

import pytest

from dsmla_bench.evals.published import rows


def the_row(model, benchmark, format):
    (found,) = [
        row for row in rows() if row.model.startswith(model) and row.benchmark == benchmark and row.format == format
    ]
    return found


@pytest.mark.parametrize(
    ("model", "benchmark", "format", "z"),
    [
        ("DeepSeek-R1", "gpqa_diamond", "fp4_e2m1", -1.00),
        ("DeepSeek-R1", "aime25", "fp4_e2m1", -0.82),
        ("GPT-OSS", "aime25", "fp4_e2m1", -3.35),
        ("DeepSeek-V4-Flash", "HumanEval", "nvfp4_ds_mla", 1.503),
        ("DeepSeek-V4-Flash", "MBPP", "nvfp4_ds_mla", 0.552),
    ],
)
def test_how_far_a_published_difference_is_from_none(model, benchmark, format, z):
    """Case C7 among them: "4 bits beat 8 bits" by 1.5 standard errors."""
    row = the_row(model, benchmark, format)
    assert row.delta / row.error == pytest.approx(z, abs=0.01)
    assert (row.p < 0.05) == (abs(z) > 1.96)
    assert row.resolution == pytest.approx(2.80 * row.error, rel=1e-3)


def test_most_published_losses_of_four_bits_are_below_their_own_resolution():
    known = [row for row in rows() if row.metric == "accuracy" and row.delta is not None]
    assert sum(abs(row.delta) < row.resolution for row in known) > 0.8 * len(known)


def test_kl_over_boots_has_the_error_of_their_mean():
    row = the_row("GLM-5.2", "WikiText-2, 2048 tokens", "nvfp4, outer scale, bf16 RoPE")
    assert row.error == pytest.approx((0.0030**2 + 0.0035**2) ** 0.5 / 5**0.5)
    assert the_row("GLM-5.2", "WikiText-2, 2048 tokens", "nvfp4, fp8 RoPE").p is None


def test_every_row_has_a_source_and_one_without_scores_says_why():
    for row in rows():
        assert row.source
        assert row.delta is not None or row.note
        assert row.metric in ("accuracy", "KL")
        assert row.score is None or 0 <= row.score <= 1
