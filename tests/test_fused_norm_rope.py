"""fused_norm_rope: the bytes of norms, RoPE and the cache write in one kernel, and what it refuses before a launch.

Inputs that are small whole numbers have sums without rounding, the same in any order: there every byte must be right.
"""

import dataclasses
import importlib

import hypothesis
import pytest
import torch
from caches import geometry_of, poisoned_cache, rows_in
from hypothesis import strategies as st

from dsmla_bench.bench import gate
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.cli.kernels import choose_variants
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import Geometry, all_formats, get_format
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations import Shape, get_operation, norms, rope
from dsmla_bench.kernels.operations.fused_norm_rope import (
    FusedNormRopeInputs,
    fused_norm_rope,
    outputs,
    plan,
    reference,
)
from dsmla_bench.kernels.operations.indexer import INDEXER_CACHE, quantize_index, rotate_index

fused_norm_rope_module = importlib.import_module("dsmla_bench.kernels.operations.fused_norm_rope")
FUSED = get_operation("fused_norm_rope")
FORMATS = all_formats()
EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.key)
INDEX_TYPES = [torch.int32, torch.int64]
POSITIONS, Q_LORA_RANK, TOPK = 32, 96, 40
ONES = {
    "nvfp4_ds_mla": [0x77] * 256 + [0x38] * 64 + [0x23] * 32,
    "fp8_ds_mla": [0x78] * 512 + [0x00, 0x00, 0x80, 0x3B] * 4 + [0x80, 0x3F] * 64,
}
"""Rows of tokens of ones, also after an RMSNorm with weights of one."""


def make(fmt, device, tokens=5, *, seed=0, draw=None, geometry=None, blocks=2, block_size=4, **changes):
    """Inputs with an indexer for tokens in slots 0, 1, …; ``draw(size, generator)`` makes their values."""
    geometry = geometry or geometry_of(fmt)
    generator = torch.Generator().manual_seed(seed)
    draw = draw or (lambda *size, generator: torch.randn(*size, generator=generator))

    def values(*size):
        return draw(*size, generator=generator).bfloat16().to(device)

    def weight(width):
        return torch.randn(width, generator=generator).to(device)

    found = FusedNormRopeInputs(
        fmt=fmt,
        positions=torch.randint(POSITIONS, (tokens,), generator=generator).to(device),
        q_c=values(tokens, Q_LORA_RANK),
        q_weight=weight(Q_LORA_RANK),
        q_c_out=empty(tokens, Q_LORA_RANK, device),
        kv_c=values(tokens, geometry.kv_lora_rank),
        kv_weight=weight(geometry.kv_lora_rank).bfloat16(),
        k_pe=values(tokens, geometry.rope_dim),
        cos_sin=rope.random_table(POSITIONS, geometry.rope_dim, device).float(),
        cache=torch.full((blocks, block_size, fmt.row_bytes(geometry)), 0xAA, dtype=torch.uint8, device=device)
        if geometry != geometry_of(fmt)
        else poisoned_cache(fmt, blocks, block_size, device),
        slot_mapping=torch.arange(tokens, device=device),
        index_k=values(tokens, 128),
        index_weight=weight(128),
        index_bias=weight(128),
        index_cos_sin=rope.random_table(POSITIONS, 64, device),
        index_cache=torch.full((blocks, block_size, 132), 0xAA, dtype=torch.uint8, device=device),
        topk_indices=torch.full((tokens, TOPK), 7, dtype=torch.int32, device=device),
    )
    return dataclasses.replace(found, **changes)


def empty(tokens, width, device):
    return torch.empty(tokens, width, dtype=torch.bfloat16, device=device)


def with_kv(inputs):
    """The same, with kv_c and k_pe materialised."""
    kv_c, k_pe = inputs.kv_c, inputs.k_pe
    kv_c_out, k_pe_out = (empty(len(inputs.positions), tensor.shape[1], tensor.device) for tensor in (kv_c, k_pe))
    return dataclasses.replace(inputs, kv_c_out=kv_c_out, k_pe_out=k_pe_out)


def without_indexer(inputs):
    names = ("index_k", "index_weight", "index_bias", "index_cos_sin", "index_cache", "topk_indices")
    return dataclasses.replace(inputs, index_slot_mapping=None, **dict.fromkeys(names))


VARIANTS = {
    "indexer": lambda inputs: inputs,
    "no-indexer": without_indexer,
    "indexer+kv": with_kv,
    "no-indexer+kv": lambda inputs: with_kv(without_indexer(inputs)),
}


def expected_of(inputs):
    """What the reference writes, from poison."""
    return gate.outputs_of(reference(inputs.fmt, inputs), outputs(inputs))


def found_of(inputs):
    """What the kernel writes, from poison."""
    return gate.outputs_of(lambda: fused_norm_rope(inputs), outputs(inputs))


def assert_same_bytes(inputs):
    found, expected = found_of(inputs), expected_of(inputs)
    for name, want in expected.items():
        differing = int((found[name].view(torch.uint8) != want.view(torch.uint8)).sum())
        assert differing == 0, f"{name}: {differing} of {want.nbytes} bytes differ"


def whole(low, high):
    """Draws whole numbers, whose sums of squares fp32 holds exactly in any order."""
    return lambda *size, generator: torch.randint(low, high + 1, size, generator=generator).float()


# Bytes


@EVERY_FORMAT
@hypothesis.settings(max_examples=5, deadline=None)
@hypothesis.given(
    variant=st.sampled_from(list(VARIANTS)),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-8, 8),
    interleaved=st.booleans(),
    eps=st.sampled_from([1e-6, 1e-5]),
)
def test_where_no_sum_rounds_every_byte_is_that_of_quantize(fmt, device, variant, seed, exponent, interleaved, eps):
    draw = whole(-1, 2)
    inputs = make(fmt, device, seed=seed, draw=draw, index_interleaved=interleaved, rms_eps=eps, index_eps=eps)
    scaled = {name: getattr(inputs, name) * 2.0**exponent for name in ("q_c", "kv_c", "k_pe", "index_k")}
    scale = torch.tensor([0.3], device=device)
    assert_same_bytes(VARIANTS[variant](dataclasses.replace(inputs, scale=scale, **scaled)))


@EVERY_FORMAT
def test_of_random_values_few_move_by_a_step_and_all_without_a_sum_are_exact(fmt, device):
    """The order of a sum moves at most one value in 10 000 (beside three) by one step, and neither RoPE nor topk."""
    inputs = with_kv(make(fmt, device, 12, blocks=3, scale=torch.tensor([0.3], device=device)))
    found, expected = found_of(inputs), expected_of(inputs)
    assert FUSED.tolerance(found, expected) is None
    for name in ("k_pe_out", "topk_indices", "cache RoPE"):
        assert torch.equal(found[name].view(torch.uint8), expected[name].view(torch.uint8)), name


def test_a_row_is_quantized_from_fp32_and_not_from_bf16(device):
    """Rounding the normed values to bf16 first, as two kernels would, gives other bytes."""
    fmt = get_format("fp8_ds_mla")
    inputs = make(fmt, device, draw=whole(-1, 2))
    normed = norms.rms_norm(inputs.kv_c, inputs.kv_weight, inputs.rms_eps)
    k_pe = rope.rotate(inputs.k_pe.float(), inputs.cos_sin[inputs.positions], interleaved=True)
    fused_norm_rope(inputs)
    rows = rows_in(fmt, inputs.cache)[:5]
    assert torch.equal(rows, fmt.quantize(normed, k_pe, None))
    assert not torch.equal(rows, fmt.quantize(normed.bfloat16(), k_pe, None))


def test_the_norms_are_those_of_torch(device):
    generator = torch.Generator().manual_seed(0)
    values, weight, bias = (torch.randn(*size, generator=generator).to(device) for size in ((4, 128), (128,), (128,)))
    rms = torch.nn.functional.rms_norm(values, (128,), weight, 1e-6)
    layer = torch.nn.functional.layer_norm(values, (128,), weight, bias, 1e-6)
    torch.testing.assert_close(norms.rms_norm(values, weight, 1e-6), rms, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(norms.layer_norm(values, weight, bias, 1e-6), layer, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("key", "stored"), [("nvfp4_ds_mla", [0xB8, 0x3E]), ("bf16", [0x80, 0xBF, 0xE0, 0x3F])])
def test_k_pe_is_rotated_in_pairs_of_neighbours(device, key, stored):
    """Case A18: pair (1, 2) by cos 0.5 and sin 0.75 is (-1, 1.75)."""
    fmt = get_format(key)
    inputs = without_indexer(make(fmt, device, 1))
    table = torch.cat([torch.ones(32, 32), torch.zeros(32, 32)], dim=1).to(device)
    table[:, 0], table[:, 32] = 0.5, 0.75
    k_pe = torch.zeros(1, 64, device=device).bfloat16()
    k_pe[0, :2] = torch.tensor([1.0, 2.0])
    fused_norm_rope(dataclasses.replace(inputs, cos_sin=table, k_pe=k_pe))
    start = {"nvfp4_ds_mla": 256, "bf16": 1024}[key]
    rope_bytes = rows_in(fmt, inputs.cache)[0, start:].tolist()
    assert rope_bytes[: len(stored)] == stored
    assert not any(rope_bytes[len(stored) : 64])


# Rows, slots and shapes


@pytest.mark.parametrize("key", ["nvfp4_ds_mla", "fp8_ds_mla"])
def test_a_negative_slot_costs_the_cache_row_alone(device, key):
    """Case A9: slots 5, none, 0 and 63 of two blocks. The query is normed for all, the top-k cleared for all."""
    fmt, ones = get_format(key), torch.ones(4, 512, device=device).bfloat16()
    table = torch.cat([torch.ones(POSITIONS, 32), torch.zeros(POSITIONS, 32)], dim=1).to(device)
    inputs = make(
        fmt,
        device,
        4,
        block_size=64,
        kv_c=ones,
        k_pe=ones[:, :64],
        kv_weight=ones[0],
        cos_sin=table,
        slot_mapping=torch.tensor([5, -1, 0, 63], device=device),
    )
    expected = norms.rms_norm(inputs.q_c, inputs.q_weight, inputs.rms_eps)
    fused_norm_rope(inputs)
    rows = rows_in(fmt, inputs.cache)
    for slot in (5, 0, 63):
        assert rows[slot].tolist() == ONES[key]
    assert int((rows == 0xAA).sum()) == 125 * fmt.row_bytes()
    assert int((inputs.index_cache == 0xAA).sum()) >= 125 * 132
    torch.testing.assert_close(inputs.q_c_out.float(), expected, rtol=1e-2, atol=1e-2)
    assert bool((inputs.topk_indices == -1).all())


@pytest.mark.parametrize("key", ["fp8_ds_mla", "dsv4_584"])
@pytest.mark.parametrize(("variant", "slot_type"), list(zip(VARIANTS, INDEX_TYPES * 2, strict=True)))
def test_slots_of_both_types_indexer_slots_of_their_own_and_longer_inputs(key, device, slot_type, variant):
    """positions decides how many tokens there are. Rows skipped by either mapping stay, wherever positions point."""
    inputs = make(get_format(key), device, 9, draw=whole(-1, 2), blocks=5)
    slots = torch.tensor([17, -7, 3, -(2**31), 0, 11, -1, -1, -1], dtype=slot_type, device=device)
    index_slots = torch.tensor([2, 4, -1, -9, 19, 6, 1, 1, 1], dtype=slot_type, device=device)
    positions = inputs.positions[:6].to(slot_type)
    if "kv" not in variant:
        positions[[1, 3]] = 2**30
    inputs = dataclasses.replace(inputs, positions=positions, slot_mapping=slots, index_slot_mapping=index_slots)
    assert_same_bytes(VARIANTS[variant](inputs))
    if variant == "indexer":
        touched = (rows_in(INDEXER_CACHE, inputs.index_cache) != 0xAA).any(-1).nonzero().flatten()
        assert touched.tolist() == [2, 6, 19]
        assert bool((inputs.topk_indices[6:].view(torch.uint8) == 0xAA).all())


@EVERY_FORMAT
def test_slices_of_one_projection_and_padded_caches(fmt, device):
    """A single projection of 809 columns, an odd offset, rows and pages apart, unaligned tables."""
    geometry = geometry_of(fmt)
    inputs = make(fmt, device, draw=whole(-1, 2))
    wide = whole(-1, 2)(5, 811, generator=torch.Generator().manual_seed(3)).bfloat16().to(device)
    q_c, latent = wide[:, 1 : 1 + Q_LORA_RANK], wide[:, 101:]
    kv_c, k_pe = latent[:, : geometry.kv_lora_rank], latent[:, geometry.kv_lora_rank : geometry.kv_lora_rank + 64]
    out = torch.empty(5, Q_LORA_RANK + 3, dtype=torch.bfloat16, device=device)[:, 1 : 1 + Q_LORA_RANK]
    topk = torch.empty(5, TOPK + 1, dtype=torch.int32, device=device)[:, 1:]
    changes = {"q_c": q_c, "kv_c": kv_c, "k_pe": k_pe, "index_k": wide[:, 683:], "q_c_out": out, "topk_indices": topk}
    if not fmt.suffix_bytes:
        row_bytes = fmt.row_bytes(geometry)
        pool = torch.full((2, 5, row_bytes + 60), 0xAA, dtype=torch.uint8, device=device)
        changes["cache"] = pool[:, 1:, :row_bytes]
    index_pool = torch.full((2, 4 * 132 + 52), 0xAA, dtype=torch.uint8, device=device)
    changes["index_cache"] = index_pool[:, : 4 * 132].unflatten(1, (4, 132))
    assert_same_bytes(dataclasses.replace(inputs, **changes))
    assert bool((index_pool[:, 4 * 132 :] == 0xAA).all())


@pytest.mark.parametrize("key", ["bf16", "fp8"])
@pytest.mark.parametrize(("rank", "rope_dim"), [(256, 64), (512, 0), (192, 34)])
def test_other_geometries(device, key, rank, rope_dim):
    """Case A14, and widths that are no powers of two."""
    inputs = make(get_format(key), device, geometry=Geometry(rank, rope_dim), draw=whole(-1, 2))
    assert_same_bytes(with_kv(inputs))


@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_any_block_size(device, block_size):
    inputs = make(get_format("nvfp4_ds_mla"), device, draw=whole(-1, 2), blocks=60, block_size=block_size)
    slots = torch.randperm(60 * block_size, generator=torch.Generator().manual_seed(3))[:5].to(device)
    assert_same_bytes(dataclasses.replace(inputs, slot_mapping=slots))


@pytest.mark.parametrize("tokens", [1024, 65536])
def test_many_tokens_take_programs_of_several_each(device, monkeypatch, tokens):
    """Their configuration, on a few tokens more than a unit of it."""
    inputs = with_kv(make(get_format("fp8_ds_mla"), device, 19, draw=whole(-1, 2), blocks=5))
    few = plan(inputs.fmt, inputs, 90).constants
    many = fused_norm_rope_module._configuration(tokens, indexer=True, divides=False)
    monkeypatch.setattr(fused_norm_rope_module, "_configuration", lambda tokens, *, indexer, divides: many)
    assert plan(inputs.fmt, inputs, 90).constants["KV_TOKENS"] > few["KV_TOKENS"]
    assert_same_bytes(inputs)


def test_the_indexers_cache_is_a_page_of_keys_and_then_scales(device):
    inputs = make(get_format("bf16"), device, draw=whole(-1, 2))
    fused_norm_rope(inputs)
    keys = norms.layer_norm(inputs.index_k, inputs.index_weight, inputs.index_bias, inputs.index_eps)
    codes, scales = quantize_index(rotate_index(keys, inputs.index_cos_sin[inputs.positions], interleaved=False))
    page = inputs.index_cache[0].flatten()
    assert torch.equal(page[: 4 * 128].view(4, 128), codes[:4])
    assert torch.equal(page[4 * 128 :].view(torch.float32), scales[:4, 0])
    read, _ = INDEXER_CACHE.dequantize(rows_in(INDEXER_CACHE, inputs.index_cache)[:5])
    largest = keys.abs().amax(-1, keepdim=True)
    rotated = rotate_index(keys, inputs.index_cos_sin[inputs.positions], interleaved=False)
    assert bool(((read.float() - rotated).abs() <= rotated.abs() / 16 + largest / 2**15).all())


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_tokens_is_no_work(device, variant):
    inputs = VARIANTS[variant](make(get_format("fp8_ds_mla"), device, 0))
    fused_norm_rope(inputs, check_values=True)
    assert bool((inputs.cache == 0xAA).all())


# The operation of the sweep


@pytest.mark.parametrize("variant", FUSED.variants)
def test_what_the_sweep_measures_is_right_and_reads_and_writes_what_it_says(device, variant):
    fmt, shape = get_format("fp8_ds_mla"), Shape(3, block_size=4, variant=variant)
    inputs = FUSED.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(0))
    launch = FUSED.plan(fmt, inputs, device_arch(device))
    result = gate.compare(FUSED, gate.outputs_of(launch.run, outputs(inputs)), expected_of(inputs))
    assert result.reason is None
    traffic, indexer, kv = FUSED.traffic(fmt, shape), not variant.startswith("no-"), variant.endswith("+kv")
    assert traffic.bytes_written == 3 * (3072 + 656 + indexer * (132 + 8192) + kv * 1152)
    assert traffic.bytes_read == 3 * (16 + 3072 + 1152 + 128 + indexer * 384) + 4096 + indexer * 1024


def test_a_sweep_takes_two_variants_and_any_by_name_where_an_operation_has_it():
    def variants(**asked):
        axes = Axes(("write", "fused_norm_rope", "fused_q"), ("bf16:raw",), ("triton",), tokens=(1,), **asked)
        cases = expand(axes, Architecture(9, 0))
        return sorted({(case.operation, case.variant) for case in cases if case.operation != "write"})

    both = ("indexer", "no-indexer")
    assert variants() == [(name, variant) for name in ("fused_norm_rope", "fused_q") for variant in both]
    assert variants(variant=("indexer+kv",)) == [("fused_norm_rope", "indexer+kv")]
    assert choose_variants("no-indexer+kv") == ("no-indexer+kv",)
    with pytest.raises(ValueError, match="no variant 'kv'; available: indexer, no-indexer, indexer"):
        choose_variants("kv")


def test_the_gate_refuses_a_wrong_pairing(device):
    """A kernel that rotates the indexer's keys in the other pairing is further away than a step."""
    inputs = make(get_format("bf16"), device)
    other = dataclasses.replace(inputs, index_interleaved=True)
    result = gate.compare(FUSED, found_of(other), expected_of(inputs))
    assert "of index_cache key are more than one step away" in result.reason


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_c": torch.zeros(5, 96)}, r"q_c must be torch.bfloat16 \[n, any\], found torch.float32"),
        ({"q_c": torch.zeros(4, 96).bfloat16()}, "q_c must have at least a row for each of 5 tokens, found 4"),
        ({"q_c_out": torch.zeros(5, 95).bfloat16()}, r"q_c_out must be torch.bfloat16 \[n, 96\]"),
        ({"q_c_out": torch.zeros(1, 96).bfloat16().expand(5, 96)}, "q_c_out rows must not overlap, found row stride 0"),
        ({"q_weight": torch.zeros(97)}, r"q_weight must be torch.float32 or torch.bfloat16 \[96\], contiguous; found"),
        ({"kv_weight": torch.zeros(512).half()}, r"kv_weight must be .* found torch.float16 \[512\]"),
        ({"kv_c": torch.zeros(5, 256).bfloat16()}, r"fp8_ds_mla needs 512\+64, got 256\+64"),
        ({"cos_sin": torch.zeros(32, 32)}, r"cos_sin must be torch.float32 \[n, 64\], found torch.float32 \[32, 32\]"),
        ({"cos_sin": torch.zeros(32, 64).half()}, "cos_sin must be torch.float32 .* found torch.float16"),
        ({"slot_mapping": torch.zeros(4, dtype=torch.int64)}, r"slot_mapping must be .* \[>= 5\]"),
        ({"positions": torch.zeros(5)}, "positions must be torch.int32 or torch.int64"),
        ({"kv_c_out": torch.zeros(5, 512).bfloat16()}, "kv_c_out and k_pe_out must be given together or not at all"),
        ({"index_bias": None}, "an indexer needs index_k, .*; index_bias is None"),
        ({"index_k": None}, "an indexer needs .*; index_k is None"),
        ({"index_k": torch.zeros(5, 64).bfloat16()}, r"index_k must be torch.bfloat16 \[n, 128\]"),
        ({"index_cache": torch.zeros(2, 4, 128, dtype=torch.uint8)}, r"cache of indexer must be .* 132\]"),
        ({"index_cos_sin": torch.zeros(32, 128)}, r"index_cos_sin must be torch.float32 \[n, 64\]"),
        ({"index_slot_mapping": torch.zeros(5)}, "index_slot_mapping must be torch.int32 or torch.int64"),
        ({"topk_indices": torch.zeros(5, 40, dtype=torch.int64)}, "topk_indices must be torch.int32"),
        ({"scale": torch.ones(2)}, "scale of fp8_ds_mla must be one torch.float32 value"),
    ],
)
def test_what_cannot_be_right_is_refused_before_a_launch(change, message):
    inputs = make(get_format("fp8_ds_mla"), torch.device("cpu"), **change)
    with pytest.raises(ValueError, match=message):
        fused_norm_rope(inputs)
    assert bool((inputs.cache == 0xAA).all())


def test_an_odd_width_of_rope_is_refused():
    inputs = make(get_format("bf16"), torch.device("cpu"), geometry=Geometry(512, 64))
    odd = dataclasses.replace(
        inputs,
        k_pe=inputs.k_pe[:, :63],
        cos_sin=inputs.cos_sin[:, :63],
        cache=torch.zeros(2, 4, 1150, dtype=torch.uint8),
    )
    with pytest.raises(ValueError, match="k_pe must have an even width to be rotated in pairs, found 63"):
        fused_norm_rope(odd)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.tensor([0, 32, 0, 0, 0])}, "positions must be from 0 to 31, found 0 to 32"),
        ({"slot_mapping": torch.tensor([0, 8, -1, 1, 2])}, r"slot_mapping\[1\] is 8, but the cache has slots 0 to 7"),
        ({"index_slot_mapping": torch.tensor([0, 9, -1, 1, 2])}, r"^index_slot_mapping\[1\] is 9"),
    ],
)
def test_values_out_of_range_are_refused_on_request(device, change, message):
    changes = {name: value.to(device) for name, value in change.items()}
    inputs = make(get_format("bf16"), device, **changes)
    with pytest.raises(ValueError, match=message):
        fused_norm_rope(inputs, check_values=True)
    assert bool((inputs.cache == 0xAA).all())


def test_positions_of_rows_without_a_slot_may_be_anything(device):
    positions = torch.tensor([0, 2**30, 1], device=device)
    inputs = make(get_format("bf16"), device, 3, positions=positions, slot_mapping=torch.tensor([0, -1, 1]).to(device))
    fused_norm_rope(inputs, check_values=True)
    with pytest.raises(ValueError, match="positions must be from 0 to 31, found 0 to 1073741824"):
        fused_norm_rope(with_kv(inputs), check_values=True)


def test_an_unknown_variant_is_refused(device):
    with pytest.raises(ValueError, match="no variant 'kv' of fused_norm_rope; available: indexer, no-indexer"):
        FUSED.make_inputs(get_format("bf16"), Shape(1, variant="kv"), device, torch.Generator())


# On a device


@pytest.mark.gpu
@EVERY_FORMAT
@pytest.mark.parametrize("variant", FUSED.variants)
@pytest.mark.parametrize("tokens", [1, 17, 512, 5000])
def test_compiled_kernels_of_the_sweep_are_within_a_step(fmt, device, variant, tokens):
    shape = Shape(tokens, geometry=geometry_of(fmt), shuffled=True, variant=variant)
    inputs = FUSED.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(tokens))
    found = gate.outputs_of(FUSED.plan(fmt, inputs, device_arch(device)).run, outputs(inputs))
    assert gate.compare(FUSED, found, expected_of(inputs)).reason is None


@pytest.mark.gpu
def test_more_tokens_than_a_grid_has_in_its_second_dimension(device):
    fmt = get_format("fp8_ds_mla")
    inputs = FUSED.make_inputs(fmt, Shape(70_000), device, torch.Generator(device).manual_seed(0))
    found = gate.outputs_of(FUSED.plan(fmt, inputs, device_arch(device)).run, outputs(inputs))
    assert gate.compare(FUSED, found, expected_of(inputs)).reason is None
