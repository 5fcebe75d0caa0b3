"""The simulated cache: it changes nothing when it stores bf16, and exactly what the format changes otherwise."""

import contextlib

import pytest
import torch

pytest.importorskip("transformers", reason="the extra accuracy is not installed")

from tiny_models import configuration, tiny, tokens
from transformers import DynamicCache

from dsmla_bench.evals.fidelity import compare
from dsmla_bench.evals.latents import calibrated_scales, captured_latents
from dsmla_bench.evals.mla_families import FAMILIES, cache_argument, geometry_of
from dsmla_bench.evals.simulated_cache import CacheVariant, SimulatedCache, attach
from dsmla_bench.kernels.formats import Geometry, default_formats, get_format

BF16, FP8, FP8_DS, NVFP4 = (get_format(name) for name in ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"))
LOSSY = (FP8, FP8_DS, NVFP4)
DENSE, SPARSE = "deepseek_v3", "deepseek_v32"


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def logits(model, batch, fmt=None, **options):
    with attach(model, fmt, **options):
        return model(batch).logits


def with_cache(model, batch, cache):
    return model(batch, **{cache_argument(model): cache})


def stepwise(model, batch, first):
    """Logits of a prefill of ``first`` tokens and of one call for every token after it."""
    out = model(batch[:, :first])
    parts = [out.logits]
    for token in batch[:, first:].split(1, dim=1):
        out = with_cache(model, token, out.past_key_values)
        parts.append(out.logits)
    return torch.cat(parts, dim=1)


def cached(model, batch, fmt):
    """The cache that a prefill leaves."""
    with attach(model, fmt):
        return model(batch).past_key_values


@contextlib.contextmanager
def hooked(model, fmt):
    """Another way to the same: the format applied to the output of every latent norm. RoPE keys are out of reach."""

    def through(module, given, latent):
        flat = latent.reshape(-1, latent.shape[-1])
        rows = fmt.quantize(flat, flat.new_zeros(len(flat), 64), None)
        return fmt.dequantize(rows, Geometry(), None)[0].view_as(latent)

    norms = [module for name, module in model.named_modules() if name.endswith("kv_a_layernorm")]
    handles = [norm.register_forward_hook(through) for norm in norms]
    yield len(handles)
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_storing_bf16_changes_no_bit_and_other_formats_do(family):
    model, batch = tiny(family), tokens(2, 40)
    assert type(model).__name__ == FAMILIES[family]
    plain = logits(model, batch)
    assert torch.equal(logits(model, batch, BF16), plain)
    # One prefill is all that a task of log-likelihoods sees. A cache that returns what it was given shows no loss here.
    for fmt in LOSSY:
        assert not torch.equal(logits(model, batch, fmt), plain)
    assert torch.equal(logits(model, batch), plain)


@pytest.mark.parametrize("family", ["deepseek_v2", DENSE, SPARSE, "glm_moe_dsa", "glm4_moe_lite"])
def test_fp8_ds_mla_is_exactly_a_hook_on_the_latent_norm(family):
    model, batch = tiny(family), tokens(2, 40)
    with hooked(model, FP8_DS) as norms:
        expected = model(batch).logits
    assert norms == 2
    assert torch.equal(logits(model, batch, FP8_DS), expected)


@pytest.mark.parametrize("family", [DENSE, SPARSE, "glm_moe_dsa"])
@pytest.mark.parametrize("fmt", [BF16, *LOSSY], ids=lambda fmt: fmt.name)
def test_prefill_is_stepwise_decode_within_the_floor_of_the_model_itself(family, fmt):
    model, batch = tiny(family, torch.float32), tokens(2, 40)

    def difference(fmt):
        with attach(model, fmt):
            return compare(model(batch).logits[:, :-1], stepwise(model, batch, 8)[:, :-1], batch[:, 1:]).kl.mean()

    assert difference(fmt) <= 2 * difference(None)


def test_the_cache_holds_what_a_reader_gets_and_the_indexer_is_left_alone():
    model, batch = tiny(SPARSE), tokens(2, 40)
    plain, coded = cached(model, batch, None).layers[0], cached(model, batch, NVFP4).layers[0]
    rows = NVFP4.quantize(plain.keys.flatten(0, 2), plain.values.flatten(0, 2), None)
    kv_c, k_pe = NVFP4.dequantize(rows, Geometry(), None)
    assert torch.equal(coded.keys.flatten(0, 2), kv_c)
    assert torch.equal(coded.values.flatten(0, 2), k_pe)
    assert torch.equal(coded.indexer_keys, plain.indexer_keys)


@pytest.mark.parametrize(("only", "same"), [("nope", "values"), ("rope", "keys")])
def test_an_ablation_quantizes_one_part_alone(only, same):
    model, batch = tiny(DENSE), tokens(2, 40)
    variant = CacheVariant(NVFP4, only)
    plain, ablated, both = (cached(model, batch, fmt).layers[0] for fmt in (None, variant, NVFP4))
    for part in ("keys", "values"):
        expected = plain if part == same else both
        assert torch.equal(getattr(ablated, part), getattr(expected, part))
    assert variant.name == {"nope": "nvfp4_ds_mla (NoPE only)", "rope": "nvfp4_ds_mla (RoPE only)"}[only]


@pytest.mark.parametrize("family", [DENSE, SPARSE])
def test_generate_reads_and_fills_the_simulated_cache(family):
    model, prompt = tiny(family), tokens(2, 12)
    with attach(model, NVFP4):
        found = model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    cache, given, expected = SimulatedCache(model.config, NVFP4), prompt, [prompt]
    for _ in range(8):
        scores = with_cache(model, given, cache).logits[:, -1]
        scores[:, model.config.eos_token_id] = -torch.inf
        given = scores.argmax(-1, keepdim=True)
        expected.append(given)
    assert torch.equal(found, torch.cat(expected, dim=1))


def test_beams_carry_their_quantized_past_along():
    model, prompt = tiny(DENSE, torch.float32), tokens(2, 12)
    options = {"num_beams": 3, "max_new_tokens": 8, "min_new_tokens": 8, "length_penalty": 0.0}
    options |= {"return_dict_in_generate": True, "output_scores": True, "num_return_sequences": 3}
    with attach(model, NVFP4):
        found = model.generate(prompt, **options)
        log_p = model(found.sequences[:, :-1]).logits[:, 11:].log_softmax(-1)
    rescored = log_p.gather(-1, found.sequences[:, 12:, None]).sum((1, 2))
    torch.testing.assert_close(found.sequences_scores, rescored, atol=1e-3, rtol=0)
    with attach(model, None):
        plain = model.generate(prompt, **options)
    assert not torch.allclose(plain.sequences_scores, found.sequences_scores, atol=1e-3)


def test_a_model_told_not_to_cache_is_simulated_all_the_same():
    model, batch = tiny(DENSE), tokens(2, 40)
    with attach(model, NVFP4):
        assert torch.equal(model(batch, use_cache=False).logits, model(batch).logits)


def test_a_fresh_prefill_reads_its_own_tokens_as_they_were_and_earlier_ones_from_the_cache():
    model, batch = tiny(DENSE), tokens(2, 40)
    first, second = batch[:, :24], batch[:, 24:]
    assert torch.equal(logits(model, first, NVFP4, prefill="fresh"), logits(model, first))
    with attach(model, NVFP4, prefill="fresh"):
        found = with_cache(model, second, model(first).past_key_values).logits
    past = model(first).past_key_values
    for layer in past.layers:
        rows = NVFP4.quantize(layer.keys.flatten(0, 2), layer.values.flatten(0, 2), None)
        kv_c, k_pe = NVFP4.dequantize(rows, Geometry(), None)
        layer.keys, layer.values = kv_c.view_as(layer.keys), k_pe.view_as(layer.values)
    assert torch.equal(found, with_cache(model, second, past).logits)


def test_a_fresh_prefill_decodes_from_the_cache():
    model, batch = tiny(DENSE), tokens(2, 13)
    results = []
    for prefill in ("fresh", "cache"):
        with attach(model, NVFP4, prefill=prefill):
            results.append(stepwise(model, batch, 1))
    assert torch.equal(*results)


def test_a_model_in_float32_has_its_latents_rounded_to_bf16_first():
    model, batch = tiny(DENSE, torch.float32), tokens(2, 40)
    plain, coded = cached(model, batch, None).layers[0], cached(model, batch, BF16).layers[0]
    assert coded.keys.dtype == torch.float32
    assert torch.equal(coded.keys, plain.keys.to(torch.bfloat16).float())


def test_a_latent_scale_is_undone_and_helps_small_latents():
    model, batch = tiny(DENSE), tokens(2, 40)
    assert torch.equal(logits(model, batch, CacheVariant(BF16, latent_scale=256.0)), logits(model, batch))
    for layer in model.model.layers:
        layer.self_attn.kv_a_layernorm.weight.div_(4096)
    kept = model.model.layers[0].self_attn.kv_a_layernorm.weight.clone()
    plain = cached(model, batch, None).layers[0].keys
    errors = [
        float((cached(model, batch, CacheVariant(NVFP4, latent_scale=scale)).layers[0].keys - plain).norm())
        for scale in (1.0, 4096.0)
    ]
    assert torch.equal(kept, model.model.layers[0].self_attn.kv_a_layernorm.weight)
    assert errors[1] < errors[0] / 2


# --- The scale outside the cache ---


def test_every_layer_is_read_with_its_own_scale():
    model, batch = tiny(DENSE), tokens(2, 40)
    scales = calibrated_scales(model, batch)
    latents = captured_latents(model, batch)
    assert scales == pytest.approx([float(latents[layer].float().abs().max()) / 448 for layer in (0, 1)], rel=1e-6)
    variant = CacheVariant(FP8, scales=scales, scale_origin="amax")
    assert variant.name == "fp8 (amax scale)"
    cache = cached(model, batch, variant)
    for layer, scale in enumerate(scales):
        codes = torch.cat([cache.layers[layer].keys, cache.layers[layer].values], -1).float() / scale
        assert float(codes.abs().max()) == pytest.approx(448, rel=0.01)


@pytest.mark.parametrize("fmt", [FP8_DS, NVFP4], ids=lambda fmt: fmt.name)
def test_formats_with_scales_in_their_rows_do_not_see_the_scale_outside(fmt):
    model, batch = tiny(DENSE), tokens(2, 40)
    assert torch.equal(logits(model, batch, CacheVariant(fmt, scales=(0.25,))), logits(model, batch, fmt))


# --- What is refused ---


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("deepseek_v4", "DeepSeek-V4 caches compressed"),
        ("dots3_note_text", "latents of two widths"),
        ("llama", "llama has no latent cache"),
    ],
)
def test_models_without_one_latent_of_every_token_are_refused_by_name(model_type, message):
    with pytest.raises(ValueError, match=message):
        geometry_of(configuration(model_type))


def test_a_format_that_cannot_store_the_latents_is_refused_before_anything_runs():
    model = tiny("minicpm3", kv_lora_rank=256, qk_rope_head_dim=32)
    with pytest.raises(ValueError, match=r"needs 512\+64, got 256\+32"), attach(model, NVFP4):
        raise AssertionError("entered")
    batch = tokens(1, 8)
    assert torch.equal(logits(model, batch, BF16), logits(model, batch))
    assert not torch.equal(logits(model, batch, FP8), logits(model, batch))


def test_expanded_heads_are_refused_with_what_to_install():
    cache = SimulatedCache(tiny(DENSE).config, NVFP4)
    with pytest.raises(ValueError, match=r"pip install 'transformers>=5\.18'.*without trust_remote_code"):
        cache.update(torch.zeros(1, 2, 3, 96), torch.zeros(1, 2, 3, 32), 0)


def test_caches_that_the_simulation_did_not_fill_are_refused():
    model, batch = tiny(DENSE), tokens(1, 8)
    filled, empty = model(batch).past_key_values, DynamicCache(config=model.config)
    with attach(model, FP8):
        of_fp8 = model(batch).past_key_values
    with attach(model, NVFP4):
        with pytest.raises(ValueError, match="did not fill"):
            with_cache(model, batch, filled)
        with pytest.raises(ValueError, match="stands in for a DynamicCache"):
            with_cache(model, batch, of_fp8)
        with_cache(model, batch, empty)
        with pytest.raises(ValueError, match="did not fill"):  # the caller's own cache stayed empty: its past is lost
            with_cache(model, batch, empty)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill": "both"}, "prefill must be cache or fresh"),
        ({"codec": "cuda"}, "codec must be torch or kernels"),
        ({"codec": "kernels"}, 'need a CUDA device; codec "torch" gives the same bits'),
    ],
)
def test_options_that_cannot_be(options, message):
    model = tiny(DENSE)
    with pytest.raises(ValueError, match=message), attach(model, NVFP4, **options):
        model(tokens(1, 8))


def test_variants_that_cannot_be():
    for changes, message in (
        ({"only": "both"}, "only nope or rope"),
        ({"scales": ()}, "scales must be positive"),
        ({"scales": (0.0,)}, "scales must be positive"),
        ({"latent_scale": 3.0}, "power of two"),
    ):
        with pytest.raises(ValueError, match=message):
            CacheVariant(NVFP4, **changes)


# --- On a device ---


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", default_formats(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("family", [DENSE, SPARSE])
def test_kernels_in_the_loop_give_the_bits_of_the_torch_codec(family, fmt, device):
    model, batch = tiny(family).to(device), tokens(3, 130).to(device)
    for variant in (CacheVariant(fmt), CacheVariant(fmt, "nope"), CacheVariant(fmt, "rope")):
        found, expected = (logits(model, batch, variant, codec=codec) for codec in ("kernels", "torch"))
        assert torch.equal(found, expected)
        assert torch.equal(logits(model, batch, variant), expected)
    with attach(model, fmt, codec="kernels"):
        found = model.generate(batch[:, :20], max_new_tokens=8, do_sample=False)
    with attach(model, fmt, codec="torch"):
        expected = model.generate(batch[:, :20], max_new_tokens=8, do_sample=False)
    assert torch.equal(found, expected)
