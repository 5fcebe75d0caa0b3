"""fused_q: queries rotated, packed and quantized to the byte, in both of their types, with and without an indexer."""

import dataclasses
import importlib

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from dsmla_bench.bench import gate
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import Geometry, all_formats, get_format
from dsmla_bench.kernels.formats.numerics import e4m3_from_fp32
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations import Shape, get_operation, rope
from dsmla_bench.kernels.operations.fused_q import FusedQInputs, fused_q, outputs, reference
from dsmla_bench.kernels.operations.indexer import quantize_index, rotate_index
from dsmla_bench.kernels.providers import load_providers

fused_q_module = importlib.import_module("dsmla_bench.kernels.operations.fused_q")
FUSED, BF16, FP8 = get_operation("fused_q"), get_format("bf16"), get_format("fp8")
E4M3 = torch.float8_e4m3fn
POSITIONS = 32


def make(device, tokens=3, heads=5, index_heads=3, *, seed=0, quantized=True, rope_dim=64, nope_dim=512, **changes):
    """Inputs with an indexer and random values."""
    generator = torch.Generator().manual_seed(seed)

    def values(*size):
        return torch.randn(*size, generator=generator).bfloat16().to(device)

    width = rope_dim + nope_dim if quantized else rope_dim
    found = FusedQInputs(
        positions=torch.randint(POSITIONS, (tokens,), generator=generator).to(device),
        q_pe=values(tokens, heads, rope_dim),
        cos_sin=rope.random_table(POSITIONS, rope_dim, device).float(),
        query=torch.empty(tokens, heads, width, dtype=E4M3 if quantized else torch.bfloat16, device=device),
        ql_nope=values(tokens, heads, nope_dim) if quantized else None,
        q_scale=torch.tensor([0.37], device=device),
        index_q=values(tokens, index_heads, 128),
        index_cos_sin=rope.random_table(POSITIONS, 64, device),
        index_weights=torch.randn(tokens, index_heads, generator=generator).to(device),
        index_q_out=torch.empty(tokens, index_heads, 128, dtype=E4M3, device=device),
        index_weights_out=torch.empty(tokens, index_heads, device=device),
    )
    return dataclasses.replace(found, **changes)


def without_indexer(inputs):
    names = ("index_q", "index_cos_sin", "index_weights", "index_q_out", "index_weights_out")
    return dataclasses.replace(inputs, **dict.fromkeys(names))


def assert_same_bytes(inputs):
    expected = gate.outputs_of(reference(BF16, inputs), outputs(inputs))
    found = gate.outputs_of(lambda: fused_q(inputs), outputs(inputs))
    for name, want in expected.items():
        differing = int((found[name].view(torch.uint8) != want.view(torch.uint8)).sum())
        assert differing == 0, f"{name}: {differing} of {want.nbytes} bytes differ"


# Bytes


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-40, 40),
    shape=st.tuples(st.integers(1, 4), st.sampled_from([1, 7, 8, 13]), st.sampled_from([1, 3, 8])),
    quantized=st.booleans(),
    interleaved=st.booleans(),
    indexed=st.booleans(),
    scale=st.sampled_from([None, 1.0, 0.5, 0.37, 2.0**-20]),
)
def test_every_byte_is_the_references(device, seed, exponent, shape, quantized, interleaved, indexed, scale):
    inputs = make(device, *shape, seed=seed, quantized=quantized, index_interleaved=interleaved)
    scaled = {name: getattr(inputs, name) * 2.0**exponent for name in ("q_pe", "index_q")}
    factor = None if scale is None else torch.tensor([scale], device=device)
    inputs = dataclasses.replace(inputs, q_scale=factor, **scaled)
    assert_same_bytes(inputs if indexed else without_indexer(inputs))


def test_rope_pairs_neighbours_or_halves(device):
    """Case A18: (1, 2) by cos 0.5 and sin 0.75, all other pairs by cos 1 and sin 0."""
    table = torch.cat([torch.ones(32, 32), torch.zeros(32, 32)], dim=1).to(device)
    table[:, 0], table[:, 32] = 0.5, 0.75
    vector = torch.zeros(1, 1, 128, device=device).bfloat16()
    vector[..., :2] = torch.tensor([1.0, 2.0])
    halves = e4m3_from_fp32(rope.rotate(vector[..., :64].float(), table[:1], interleaved=False)).flatten().tolist()
    assert (halves[0], halves[1], halves[32], sum(halves)) == (0x30, 0x40, 0x34, 0x30 + 0x40 + 0x34)
    inputs = make(
        device,
        1,
        1,
        1,
        q_pe=vector[..., :64],
        ql_nope=torch.full((1, 1, 512), 3.0, device=device).bfloat16(),
        cos_sin=table,
        q_scale=torch.tensor([0.5], device=device),
        index_q=vector,
        index_cos_sin=table,
    )
    packed = [0x4C] * 512 + [0xC0, 0x46] + [0] * 62
    # The indexer's scale is 2^-7 for halves, the largest of which is 2, and 1.75 / 448 = 2^-8 for neighbours.
    for interleaved, stored in ((False, {0: 0x68, 1: 0x78, 32: 0x6C}), (True, {0: 0xF8, 1: 0x7E})):
        fused_q(dataclasses.replace(inputs, index_interleaved=interleaved))
        assert inputs.query.view(torch.uint8).flatten().tolist() == packed
        codes = inputs.index_q_out.view(torch.uint8).flatten()
        assert {place: int(codes[place]) for place in codes.nonzero().flatten().tolist()} == stored
    bf16 = dataclasses.replace(inputs, query=torch.empty(1, 1, 64, device=device).bfloat16())
    fused_q(bf16)
    assert bf16.query.view(torch.uint8).flatten().tolist() == [0x80, 0xBF, 0xE0, 0x3F] + [0] * 124


def test_scales_of_the_indexer_go_into_its_weights_in_a_fixed_order(device):
    inputs = make(device, index_softmax_scale=0.3, index_head_scale=0.7)
    fused_q(inputs)
    rows = inputs.index_cos_sin[inputs.positions][:, None]
    codes, scales = quantize_index(rotate_index(inputs.index_q.float(), rows, interleaved=False))
    assert torch.equal(inputs.index_q_out.view(torch.uint8), codes)
    assert torch.equal(inputs.index_weights_out, inputs.index_weights * scales[..., 0] * 0.3 * 0.7)
    assert bool((scales.log2() == scales.log2().round()).all())


def test_a_bf16_query_leaves_ql_nope_alone(device):
    nope = torch.randn(3, 5, 512, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    inputs = make(device, quantized=False, ql_nope=nope.clone())
    assert_same_bytes(inputs)
    assert torch.equal(inputs.ql_nope, nope)
    assert inputs.query.shape == inputs.q_pe.shape


# Shapes


@pytest.mark.parametrize("position_type", [torch.int32, torch.int64])
def test_slices_of_wider_projections_and_longer_inputs(device, position_type):
    """q_pe is the tail of every head of a projection; heads may be apart; positions says how many tokens there are."""
    wide = torch.randn(6, 5, 577, generator=torch.Generator().manual_seed(2)).bfloat16().to(device)
    inputs = make(
        device,
        6,
        q_pe=wide[..., 513:],
        ql_nope=wide[..., 1:513].transpose(0, 1).contiguous().transpose(0, 1),
        query=torch.empty(6, 7, 600, dtype=E4M3, device=device)[:, 1:6, 8:584],
        index_q_out=torch.empty(6, 3, 130, dtype=E4M3, device=device)[..., 1:129],
        index_weights=torch.randn(6, 3, generator=torch.Generator().manual_seed(2)).bfloat16().to(device),
        index_weights_out=torch.empty(6, 4, device=device)[:, 1:],
    )
    assert_same_bytes(dataclasses.replace(inputs, positions=inputs.positions[:4].to(position_type)))
    assert bool((inputs.query[4:].view(torch.uint8) == gate.POISON).all())


@pytest.mark.parametrize(("rope_dim", "nope_dim"), [(64, 256), (34, 192), (2, 512)])
@pytest.mark.parametrize("quantized", [True, False])
def test_other_widths(device, rope_dim, nope_dim, quantized):
    assert_same_bytes(make(device, rope_dim=rope_dim, nope_dim=nope_dim, quantized=quantized))


@pytest.mark.parametrize("tokens", [16, 4096])
@pytest.mark.parametrize("quantized", [True, False])
def test_many_tokens_take_programs_of_many_heads(device, monkeypatch, quantized, tokens):
    """Their configuration on a few heads more than a program of it, and no whole number of them."""
    many = fused_q_module._configuration(tokens, 128, quantized=quantized)
    monkeypatch.setattr(fused_q_module, "_configuration", lambda tokens, heads, *, quantized: many)
    assert_same_bytes(make(device, 5, 7, 9, quantized=quantized))


@pytest.mark.parametrize("quantized", [True, False])
def test_no_tokens_is_no_work(device, quantized):
    fused_q(make(device, 0, quantized=quantized), check_values=True)


# The operation of the sweep


def test_the_cache_decides_the_query_and_formats_that_change_nothing_are_not_covered(device):
    assert [fmt.name for fmt in all_formats() if FUSED.covers(fmt)] == ["bf16", "fp8"]
    shape, generator = Shape(1, heads=4), torch.Generator(device).manual_seed(0)
    assert FUSED.make_inputs(FP8, shape, device, generator).query.shape == (1, 4, 576)
    query = FUSED.make_inputs(BF16, shape, device, generator).query
    assert (query.dtype, query.shape) == (torch.bfloat16, (1, 4, 64))
    with pytest.raises(ValueError, match="no variant 'kv' of fused_q; available: indexer, no-indexer"):
        FUSED.make_inputs(BF16, Shape(1, variant="kv"), device, generator)


@pytest.mark.parametrize("name", ["fused_q", "fused_norm_rope"])
def test_an_architecture_without_e4m3_has_no_kernel_in_any_format(name):
    provider, operation = load_providers({})["triton"], get_operation(name)
    reason = provider.why_not(operation, BF16, Architecture(8, 0))
    assert reason == f"{name} needs an exact conversion that sm_80 lacks; the first with it is sm_90"
    assert provider.why_not(operation, BF16, Architecture(9, 0)) is None


@pytest.mark.parametrize("fmt", [BF16, FP8], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("variant", FUSED.variants)
def test_what_the_sweep_measures_is_right_and_reads_and_writes_what_it_says(device, fmt, variant):
    shape = Shape(3, heads=3, variant=variant)
    inputs = FUSED.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(0))
    assert_same_bytes(inputs)
    traffic, width, size = FUSED.traffic(fmt, shape), *((576, 1) if fmt is FP8 else (64, 2))
    indexer = variant == "indexer"
    assert traffic.bytes_written == sum(tensor.nbytes for tensor in outputs(inputs).values())
    assert traffic.bytes_written == 3 * (3 * width * size + indexer * 64 * 132)
    assert traffic.bytes_read == 3 * (8 + 128 + 3 * 2 * width + indexer * (128 + 64 * 258))


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.zeros(3)}, "positions must be torch.int32 or torch.int64"),
        ({"q_pe": torch.zeros(3, 5, 64)}, r"q_pe must be torch.bfloat16 \[>= 3, any, any\], found torch.float32"),
        ({"q_pe": torch.zeros(2, 5, 64).bfloat16()}, r"q_pe must be .* \[>= 3, any, any\], found .* \[2, 5, 64\]"),
        ({"q_pe": torch.zeros(3, 5, 63).bfloat16()}, "q_pe must have a head or more of an even width"),
        ({"q_pe": torch.zeros(3, 0, 64).bfloat16()}, "q_pe must have a head or more"),
        ({"cos_sin": torch.zeros(32, 32)}, r"cos_sin must be torch.float32 \[n, 64\]"),
        ({"ql_nope": None}, "a quantized query needs ql_nope, found None; for RoPE alone give a torch.bfloat16 query"),
        ({"ql_nope": torch.zeros(3, 4, 512).bfloat16()}, r"ql_nope must be torch.bfloat16 \[>= 3, 5, any\]"),
        ({"query": torch.zeros(3, 5, 575).to(E4M3)}, r"query must be torch.float8_e4m3fn \[>= 3, 5, 576\]"),
        ({"query": torch.zeros(3, 5, 576)}, r"query must be torch.bfloat16 \[>= 3, 5, 64\], found torch.float32"),
        ({"query": torch.zeros(3, 576, 5).to(E4M3).mT}, "query must hold a head's values one after another"),
        ({"query": torch.zeros(3, 1, 576).to(E4M3).expand(3, 5, 576)}, "query must hold a head's values one after"),
        ({"q_scale": torch.ones(2)}, r"q_scale must be one torch.float32 value, found torch.float32 \[2\]"),
        ({"index_weights": None}, "an indexer needs index_q, .*; index_weights is None"),
        ({"index_q": torch.zeros(3, 3, 64).bfloat16()}, r"index_q must be torch.bfloat16 \[>= 3, any, 128\]"),
        ({"index_q_out": torch.zeros(3, 2, 128).to(E4M3)}, r"index_q_out must be torch.float8_e4m3fn \[>= 3, 3, 128\]"),
        ({"index_weights": torch.zeros(3, 3).half()}, "index_weights must be torch.float32 .* found torch.float16"),
        ({"index_weights_out": torch.zeros(3, 3).bfloat16()}, "index_weights_out must be torch.float32"),
        ({"index_cos_sin": torch.zeros(32, 128)}, r"index_cos_sin must be torch.float32 \[n, 64\]"),
    ],
)
def test_what_cannot_be_right_is_refused_before_a_launch(change, message):
    inputs = make(torch.device("cpu"), **change)
    with pytest.raises(ValueError, match=message):
        fused_q(inputs)


def test_positions_beyond_a_table_are_refused_on_request(device):
    inputs = make(device, positions=torch.tensor([0, 40, 1], device=device))
    with pytest.raises(ValueError, match="positions must be from 0 to 31, found 0 to 40"):
        fused_q(inputs, check_values=True)


# On a device


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", [BF16, FP8], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("variant", FUSED.variants)
@pytest.mark.parametrize(("tokens", "heads"), [(1, 128), (17, 16), (1000, 128), (70_000, 3)])
def test_compiled_kernels_of_the_sweep_are_exact(fmt, device, variant, tokens, heads):
    shape = Shape(tokens, geometry=Geometry(), heads=heads, variant=variant)
    inputs = FUSED.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(tokens))
    expected = gate.outputs_of(reference(fmt, inputs), outputs(inputs))
    found = gate.outputs_of(FUSED.plan(fmt, inputs, device_arch(device)).run, outputs(inputs))
    assert gate.compare(FUSED, found, expected).bytes_differing == 0
