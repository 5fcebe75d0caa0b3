"""The fidelity pass: its figures against float64 by hand, its floor, its buckets, and what it says of latents."""

import dataclasses
import json
import math

import pytest
import torch

pytest.importorskip("transformers", reason="the extra accuracy is not installed")

from tiny_models import VOCABULARY, tiny, tokens

from dsmla_bench.evals import fidelity as module
from dsmla_bench.evals.fidelity import FLOOR, compare, fidelity
from dsmla_bench.evals.latents import LatentStatistics, captured_latents
from dsmla_bench.evals.simulated_cache import CacheVariant, attach
from dsmla_bench.kernels.formats import Geometry, default_formats, get_format

FORMATS = default_formats()
NVFP4 = get_format("nvfp4_ds_mla")


@pytest.fixture(scope="module")
def found():
    """Every format and the two ablations on five windows of a tiny DeepSeek-V3.2."""
    variants = [*FORMATS, CacheVariant(NVFP4, "nope"), CacheVariant(NVFP4, "rope")]
    return fidelity(tiny("deepseek_v32"), tokens(5, 40), variants, batch_size=2)


def row(found, variant, bucket="all"):
    (only,) = (row for row in found.rows if (row.variant, row.bucket) == (variant, bucket))
    return only


def by_hand(p, q, gold):
    """KL and Δlogprob of one position in float64."""
    log_p, log_q = (logits.double().log_softmax(-1) for logits in (p, q))
    return float((log_p.exp() * (log_p - log_q)).sum()), float((log_q - log_p)[gold])


@pytest.mark.parametrize("chunk", [VOCABULARY, 7 * VOCABULARY, module.CHUNK_VALUES])
def test_positions_are_compared_as_by_hand_whatever_the_chunk(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK_VALUES", chunk)
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 3, 5, VOCABULARY, generator=generator) * 3
    gold = tokens(3, 5)
    positions = compare(p, q, gold)
    for window in range(3):
        for place in range(5):
            kl, dlogprob = by_hand(p[window, place], q[window, place], gold[window, place])
            assert float(positions.kl[window, place]) == pytest.approx(kl, rel=1e-5)
            assert float(positions.dlogprob[window, place]) == pytest.approx(dlogprob, rel=1e-4, abs=1e-6)
            same = p[window, place].argmax() == q[window, place].argmax()
            assert bool(positions.agree[window, place]) == bool(same)


def test_bf16_logits_are_compared_in_float32():
    # In bf16 a log-probability near -12 moves in steps of 1/16, and a difference of 0.01 would be none.
    p = torch.zeros(1, 1, 1 << 17, dtype=torch.bfloat16)
    q = p.clone()
    q[..., 0] = 0.01
    positions = compare(p, q, torch.zeros(1, 1, dtype=torch.int64))
    assert float(positions.dlogprob) == pytest.approx(0.01, rel=0.01)


def test_a_masked_token_counts_nothing_and_a_broken_position_is_undefined():
    p = torch.tensor([[[0.0, 1.0, -math.inf], [0.0, 1.0, 2.0]]])
    q = torch.tensor([[[0.5, 1.0, -math.inf], [0.0, math.nan, 2.0]]])
    positions = compare(p, q, torch.tensor([[0, 0]]))
    kl, dlogprob = by_hand(p[0, 0, :2], q[0, 0, :2], 0)
    assert float(positions.kl[0, 0]) == pytest.approx(kl, rel=1e-5)
    figures = module._figures(positions)
    assert (figures["positions"], figures["undefined"]) == (2, 1)
    assert figures["kl_max"] == pytest.approx(kl, rel=1e-5)
    assert figures["dlogprob_mean"] == pytest.approx(dlogprob, rel=1e-5)


def test_without_a_defined_position_nothing_is_a_number():
    broken = torch.full((1, 2, 3), math.nan)
    figures = module._figures(compare(broken, broken, torch.zeros(1, 2, dtype=torch.int64)))
    assert {figures.pop(name) for name in ("positions", "undefined")} == {2}
    assert set(figures.values()) == {None}


def test_formats_are_ranked_and_stand_clear_of_the_floor(found):
    kl = {name: row(found, name).kl_mean for name in (FLOOR, "bf16", "fp8_ds_mla", "nvfp4_ds_mla")}
    assert kl["bf16"] == 0
    assert max(kl[FLOOR], kl["bf16"]) < kl["fp8_ds_mla"] < kl["nvfp4_ds_mla"]
    ablated = [row(found, f"nvfp4_ds_mla ({part} only)").kl_mean for part in ("NoPE", "RoPE")]
    assert all(0 < part < 1.2 * kl["nvfp4_ds_mla"] for part in ablated)


def test_rows_say_what_was_measured_and_are_plain_data(found):
    nvfp4 = row(found, "nvfp4_ds_mla")
    assert (nvfp4.format, nvfp4.revision, nvfp4.bytes_per_token, nvfp4.positions) == ("nvfp4_ds_mla", "rn", 352, 5 * 39)
    assert nvfp4.kl_median <= nvfp4.kl_p95 <= nvfp4.kl_p99 <= nvfp4.kl_max
    assert abs(nvfp4.dlogprob_mean) <= nvfp4.dlogprob_mean_abs
    assert row(found, FLOOR).format is None
    assert json.loads(json.dumps(dataclasses.asdict(found)))["rows"][0]["variant"] == FLOOR


def test_windows_average_to_the_whole(found):
    of_variant = [window for window in found.windows if window.variant == "nvfp4_ds_mla"]
    assert [window.window for window in of_variant] == list(range(5))
    mean = sum(window.kl_mean * window.positions for window in of_variant) / (5 * 39)
    assert mean == pytest.approx(row(found, "nvfp4_ds_mla").kl_mean)


def test_positions_fall_into_buckets(monkeypatch):
    monkeypatch.setattr(module, "BUCKETS", (0, 8, 16, 64))
    found = fidelity(tiny("deepseek_v3"), tokens(3, 41), [NVFP4])
    counts = {row.bucket: row.positions for row in found.rows if row.variant == FLOOR}
    assert counts == {"all": 120, "0-8": 24, "8-16": 24, "16-64": 72}
    whole = sum(row(found, "nvfp4_ds_mla", name).kl_mean * count for name, count in counts.items() if name != "all")
    assert whole / 120 == pytest.approx(row(found, "nvfp4_ds_mla").kl_mean)


def test_batches_do_not_change_the_figures_beyond_the_floor():
    model, windows = tiny("deepseek_v3", torch.float32), tokens(5, 40)
    results = [row(fidelity(model, windows, [NVFP4], batch_size=size), "nvfp4_ds_mla") for size in (1, 2, 5)]
    for result in results[1:]:
        assert result.kl_mean == pytest.approx(results[0].kl_mean, rel=0.01)


def test_the_model_is_left_as_it_was():
    model, windows = tiny("deepseek_v3"), tokens(2, 40)
    with torch.no_grad():
        before = model(windows).logits
        fidelity(model, windows, [NVFP4])
        assert torch.equal(model(windows).logits, before)
    assert not model._forward_pre_hooks


def test_latents_are_those_that_the_model_caches():
    model, windows = tiny("deepseek_v32"), tokens(5, 40)
    found = captured_latents(model, windows, batch_size=2)
    with torch.no_grad():
        cache = model(windows).past_key_values
    for layer, values in found.items():
        expected = torch.cat([cache.layers[layer].keys, cache.layers[layer].values], dim=-1).flatten(0, 2)
        assert torch.equal(values, expected)
    assert list(found) == [0, 1]


def test_latent_rows_count_scales_and_clipped_values():
    values = torch.ones(4, 576, dtype=torch.bfloat16)
    values[0, :256] = 2.0**-20  # 16 tiles of 16 whose scale is below the smallest e4m3
    values[1, :16] = 6000.0  # one tile beyond 6 · 448
    values[2, 512] = 1000.0  # a RoPE value beyond e4m3
    statistics = LatentStatistics([CacheVariant(NVFP4), CacheVariant(get_format("fp8"))], Geometry())
    statistics.observe(3, values)
    nvfp4, fp8 = statistics.rows()
    assert (nvfp4.layer, nvfp4.tokens, nvfp4.absmax_nope, nvfp4.absmax_rope) == (3, 4, 6016.0, 1000.0)
    assert nvfp4.scales == 4 * 32
    assert nvfp4.subnormal_scales == 16 / 128
    assert nvfp4.saturated_scales == 1 / 128
    assert nvfp4.clipped == 17 / (4 * 576)
    assert (fp8.scales, fp8.subnormal_scales, fp8.scale, fp8.scale_origin) == (0, None, 1.0, "default")
    assert (nvfp4.scale, nvfp4.scale_origin) == (None, None)


def test_ablations_have_no_latent_rows_of_their_own(found):
    assert {row.variant for row in found.latents} == {fmt.name for fmt in FORMATS}
    assert {row.layer for row in found.latents} == {0, 1}


@pytest.mark.parametrize("shape", [(3, 1), (0, 8), (8,)])
def test_windows_too_short_to_follow_anything_are_refused(shape):
    with pytest.raises(ValueError, match="windows must be token ids"):
        fidelity(tiny("deepseek_v3"), torch.zeros(shape, dtype=torch.int64), [NVFP4])


def test_two_variants_of_one_name_are_refused():
    with pytest.raises(ValueError, match="needs a name of its own"):
        fidelity(tiny("deepseek_v3"), tokens(1, 8), [NVFP4, NVFP4])


@pytest.mark.gpu
def test_kernels_and_torch_codec_find_the_same(device):
    model, windows = tiny("deepseek_v32").to(device), tokens(5, 130)
    by_kernels, by_torch = (fidelity(model, windows, FORMATS, codec=codec) for codec in ("kernels", "torch"))
    assert by_kernels.rows == by_torch.rows
    with attach(model, NVFP4), torch.no_grad():
        assert bool(model(windows.to(device)).logits.isfinite().all())
