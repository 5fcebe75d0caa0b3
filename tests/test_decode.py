"""decode: agreement with its reference in every format, the rows it leaves out, what it refuses, what it compiles to.

Tolerances are the operation's own, FlashMLA's. In the interpreter shapes are small; those marked ``gpu`` are real ones.
"""

import dataclasses
import math
import os
from pathlib import Path

import pytest
import torch
from builders import case
from caches import geometry_of

from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import all_formats, get_format
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations import Shape, decode_inputs, get_operation
from dsmla_bench.kernels.operations.decode import plan, reference, sparse_decode, tolerance
from dsmla_bench.kernels.operations.decode_kernels import configuration, rows_per_split
from dsmla_bench.kernels.providers.flash_mla import FlashMlaProvider

EVERY_FORMAT = pytest.mark.parametrize("fmt", all_formats(), ids=lambda fmt: fmt.key)
EVERY_WAY = pytest.mark.parametrize("way", ["kernel", "reference"])
FP8 = get_format("fp8_ds_mla")
ONE_BLOCK, SPLIT = 20, 70


def made(fmt, device, *, tokens=1, queries=1, heads=3, topk=SPLIT, block_size=16, seed=0):
    shape = Shape(tokens, 1, block_size, True, geometry_of(fmt), heads=heads, topk=topk, queries=queries)
    return get_operation("decode").make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(seed))


def decoded(way, fmt, inputs):
    """out and lse, poisoned with 7, after a decode by the kernel or by the reference."""
    inputs.out.fill_(7.0)
    inputs.lse.fill_(7.0)
    if way == "kernel":
        plan(fmt, inputs, device_arch(inputs.q.device)).run()
    else:
        reference(fmt, inputs)()
    return {"out": inputs.out.clone(), "lse": inputs.lse.clone()}


def agree(fmt, inputs):
    """Assert that kernel and reference agree; returns what the kernel gave."""
    found, expected = decoded("kernel", fmt, inputs), decoded("reference", fmt, inputs)
    assert tolerance(found, expected) is None
    return found


@EVERY_FORMAT
def test_every_format_agrees_with_the_reference(fmt, device):
    """A top-k that no block divides, every seventh slot invalid, rows split among programs."""
    inputs = made(fmt, device, heads=3)
    inputs.indices[..., ::7] = -1
    assert len(plan(fmt, inputs, 90).steps) == 2
    agree(fmt, inputs)


@EVERY_WAY
def test_attention_is_what_the_formula_says(device, way):
    """In float64 over rows of powers of two, with a sink and two query tokens of different rows."""
    inputs = made(FP8, device, queries=2, heads=2, topk=ONE_BLOCK)
    inputs = dataclasses.replace(inputs, sink=torch.tensor([0.5, -math.inf], device=device), softmax_scale=0.1)
    found = decoded(way, FP8, inputs)
    rows = inputs.cache.view(-1, 656)[inputs.indices.long().flatten()]
    keys = torch.cat(FP8.dequantize(rows), dim=-1).double().view(2, ONE_BLOCK, 576)
    logits = torch.einsum("qhd,qkd->qhk", inputs.q[0].double(), keys) * 0.1
    total = logits.exp().sum(-1) + inputs.sink.double().exp()
    out = torch.einsum("qhk,qkd->qhd", logits.exp() / total[..., None], keys[..., :512])
    expected = {"out": out[None].bfloat16(), "lse": logits.exp().sum(-1).log()[None].float()}
    assert tolerance(found, expected) is None


@EVERY_WAY
@pytest.mark.parametrize("topk", [ONE_BLOCK, SPLIT])
def test_a_query_without_rows_gets_zeros_and_an_infinite_lse(device, way, topk):
    """Also beside one that has a row, and with a sink."""
    inputs = made(FP8, device, tokens=2, heads=2, topk=topk)
    inputs.indices[0] = -1
    inputs.indices[1, 0, 1:] = -1
    for sink in (None, torch.zeros(2, device=device)):
        found = decoded(way, FP8, dataclasses.replace(inputs, sink=sink))
        assert bool((found["out"][0] == 0).all())
        assert bool((found["lse"][0] == math.inf).all())
        assert bool(found["lse"][1].isfinite().all())
        row = inputs.cache.view(-1, 656)[inputs.indices[1, 0, :1].long()]
        if sink is None:
            assert torch.equal(found["out"][1, 0, 0], FP8.dequantize(row)[0][0])


@EVERY_WAY
@pytest.mark.parametrize("bad", [-1, -2, -(2**31), 2**31 - 1])
def test_slots_outside_the_cache_take_no_part(device, way, bad):
    inputs = made(FP8, device, heads=2, topk=ONE_BLOCK)
    fewer = dataclasses.replace(inputs, indices=inputs.indices[..., 1:])
    inputs.indices[..., 0] = bad
    assert tolerance(decoded(way, FP8, inputs), decoded("reference", FP8, fewer)) is None


@pytest.mark.parametrize(("heads", "queries"), [(1, 1), (16, 2), (40, 1), (65, 1)])
def test_heads_fill_one_tile_part_of_one_or_several(device, heads, queries):
    agree(FP8, made(FP8, device, heads=heads, queries=queries, topk=ONE_BLOCK))


def test_large_logits_do_not_overflow(device):
    inputs = made(FP8, device, heads=2)
    agree(FP8, dataclasses.replace(inputs, softmax_scale=30.0))


def test_rows_and_pages_may_be_padded(device):
    inputs = made(FP8, device, heads=2, topk=ONE_BLOCK)
    pool = torch.full((len(inputs.cache), 18, 672), 0xAA, dtype=torch.uint8, device=device)
    pool[:, :16, :656] = inputs.cache
    expected = decoded("reference", FP8, inputs)
    found = decoded("kernel", FP8, dataclasses.replace(inputs, cache=pool[:, :16, :656]))
    assert tolerance(found, expected) is None


def test_no_query_is_no_launch(device):
    inputs = made(FP8, device)
    none = {name: getattr(inputs, name)[:0] for name in ("q", "indices", "out", "lse")}
    assert plan(FP8, dataclasses.replace(inputs, **none), 90) is None
    out, lse = sparse_decode(FP8, inputs.q[:0], inputs.cache, inputs.indices[:0])
    assert (out.shape, lse.shape) == ((0, 1, 3, 512), (0, 1, 3))


def test_slots_beyond_the_cache_are_refused_on_request(device):
    inputs = made(FP8, device, heads=2, topk=ONE_BLOCK)
    slots = inputs.cache.shape[0] * inputs.cache.shape[1]
    inputs.indices[0, 0, 5] = slots
    with pytest.raises(ValueError, match=rf"indices\[0, 0, 5\] is {slots}, but the cache has slots 0 to {slots - 1}"):
        sparse_decode(FP8, inputs.q, inputs.cache, inputs.indices, check_values=True)
    out, _ = sparse_decode(FP8, inputs.q, inputs.cache, inputs.indices)
    assert bool(out.isfinite().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda i: i.q.float()}, "q must be torch.bfloat16"),
        ({"q": lambda i: i.q[..., :512]}, r"q must be torch.bfloat16 \[any, any, any, 576\]"),
        ({"q": lambda i: i.q.transpose(2, 3).contiguous().transpose(2, 3)}, "q must be contiguous in its last"),
        ({"indices": lambda i: i.indices.long()}, "indices must be torch.int32"),
        ({"indices": lambda i: i.indices[0]}, r"indices must be torch.int32 \[2, 1, any\]"),
        ({"out": lambda i: i.out[..., ::2]}, r"out must be torch.bfloat16 \[2, 1, 2, 512\]"),
        ({"lse": lambda i: i.lse.transpose(0, 2).contiguous().transpose(0, 2)}, "lse must be contiguous"),
        ({"sink": lambda i: i.lse[0, 0, :1]}, r"sink must be torch.float32 \[2\]"),
        ({"cache": lambda i: i.cache[..., :640]}, "cache of fp8_ds_mla must be torch.uint8"),
        (
            {"q": lambda i: i.q.expand(2, 2, 2, 576), "indices": lambda i: i.indices.expand(2, 2, 20)},
            "q must have its query tokens one stride apart",
        ),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(device, change, message):
    inputs = made(FP8, device, tokens=2, heads=2, topk=ONE_BLOCK)
    changed = dataclasses.replace(inputs, **{name: make(inputs) for name, make in change.items()})
    with pytest.raises(ValueError, match=message):
        plan(FP8, changed, 90)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("out", lambda out: out[0, 0, 1, 5].add_(0.1), "1 values of out differ"),
        ("out", lambda out: out.mul_(1.01), "the cosine difference of out"),
        ("out", lambda out: out[0, 0, 0, 0].fill_(math.nan), "1 values of out differ"),
        ("lse", lambda lse: lse[0, 0, 0].add_(0.01), "1 values of lse differ"),
        ("lse", lambda lse: lse[0, 0, 0].fill_(-math.inf), "1 values of lse differ"),
    ],
)
def test_the_tolerance_finds_what_is_wrong(device, name, change, message):
    expected = decoded("reference", FP8, made(FP8, device, heads=2, topk=ONE_BLOCK))
    found = {key: value.clone() for key, value in expected.items()}
    assert tolerance(found, expected) is None
    change(found[name])
    assert tolerance(found, expected).startswith(message)


def test_splits_cover_all_rows_and_about_fill_the_chip():
    for heads in (1, 16, 64, 128):
        for queries in (1, 2, 7, 32, 128, 4096):
            for topk in (1, 64, 2048, 2049):
                for row_bytes in (352, 656):
                    config = configuration(heads, queries, row_bytes, 90)
                    rows = rows_per_split(config, queries, heads, topk)
                    programs = queries * -(-heads // config.block_heads) * -(-topk // rows)
                    assert rows % config.block_rows == 0
                    assert rows < topk + config.block_rows
                    assert rows == config.block_rows or programs <= max(config.programs, queries * -(-heads // 64))


# The sweep's inputs


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_a_query_are_distinct_and_its_own(device, shuffled):
    shape = Shape(3, 1, 16, shuffled, heads=2, topk=40, queries=2)
    inputs = get_operation("decode").make_inputs(FP8, shape, device, torch.Generator(device).manual_seed(0))
    slots = inputs.indices.flatten()
    assert len(slots.unique()) == 3 * 2 * 40
    assert 0 <= int(slots.min()) <= int(slots.max()) < inputs.cache.shape[0] * 16
    assert bool((inputs.indices.diff(dim=-1) > 0).all()) is not shuffled


def test_traffic_counts_rows_once_and_both_products(device, monkeypatch):
    shape = Shape(4, 1, 16, heads=8, topk=64, queries=1)
    operation = get_operation("decode")
    moved = operation.traffic(FP8, shape)
    assert moved.bytes_read == 4 * (64 * 656 + 8 * 576 * 2 + 64 * 4)
    assert (moved.bytes_written, moved.flops) == (4 * 8 * (1024 + 4), 2 * 4 * 8 * 64 * (576 + 512))
    monkeypatch.setattr(decode_inputs, "POOL_ROWS", 128)  # two contexts for four queries
    shared = operation.make_inputs(FP8, shape, device, torch.Generator(device).manual_seed(0))
    assert len(shared.indices.unique()) == 128
    assert operation.traffic(FP8, shape).bytes_read == moved.bytes_read - 2 * 64 * 656


# Compiled


@pytest.fixture(scope="module")
def compiler():
    """A worker process that compiles."""
    worker = Worker(WorkerConfig("compile"))
    yield worker
    worker.stop()


@pytest.mark.parametrize(
    ("arch", "heads", "shared", "spilled"), [("sm90", 16, 227, 0), ("sm90", 64, 227, 512), ("sm120", 16, 99, 0)]
)
def test_it_compiles_within_the_shared_memory_and_next_to_without_spilling(compiler, arch, heads, shared, spilled):
    """Tiles of 64 heads fill every register; Triton 3.6 to 3.9 spill 0 to 468 bytes of them."""
    axes = {"heads": heads, "topk": 2048, "queries": 1, "requests": 1}
    found = compiler.measure(case("decode", "fp8_ds_mla", tokens=128, arch=arch, **axes))
    assert found.status == "compiled", found.reason
    assert found.facts["spilled_bytes"] <= spilled
    assert found.facts["shared_bytes"] <= shared * 1024
    assert found.facts["native_fp8"] is True


# On a GPU


@pytest.mark.gpu
@EVERY_FORMAT
@pytest.mark.parametrize(("tokens", "heads"), [(1, 16), (32, 16), (128, 16), (1, 64), (128, 64), (32, 128), (128, 128)])
def test_real_shapes_agree_with_the_reference(fmt, device, tokens, heads):
    if fmt.conversion(Architecture.from_capability(torch.cuda.get_device_capability())) is None:
        pytest.skip(f"{fmt.name} has no conversion here")
    inputs = made(fmt, device, tokens=tokens, heads=heads, topk=2048, block_size=64)
    inputs.indices[0, 0, 1000:] = -1
    agree(fmt, inputs)


@pytest.mark.gpu
def test_rows_beyond_two_gibibytes(device):
    """Case: slots whose byte offset needs more than 31 bits, and more than 32."""
    inputs = made(FP8, device, tokens=2, heads=16, topk=2048, block_size=64)
    pages = 2**33 // (64 * 656) + 1
    large = torch.empty(pages, 64, 656, dtype=torch.uint8, device=device)
    last = pages * 64 - inputs.cache.shape[0] * 64
    large.view(-1, 656)[last:] = inputs.cache.view(-1, 656)
    found = decoded("kernel", FP8, dataclasses.replace(inputs, cache=large, indices=inputs.indices + last))
    assert tolerance(found, decoded("reference", FP8, inputs)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [16, 64, 128])
@pytest.mark.parametrize("topk", [2048, 100])
def test_it_agrees_with_flash_mla(device, heads, topk):
    """With DSMLA_BENCH_FLASH_MLA_LIBRARY, the path of FlashMLA's compiled operators."""
    library = os.environ.get("DSMLA_BENCH_FLASH_MLA_LIBRARY")
    provider = FlashMlaProvider({"flash_mla": Path(library)} if library else {})
    arch = Architecture.from_capability(torch.cuda.get_device_capability())
    if reason := provider.why_not(get_operation("decode"), FP8, arch):
        pytest.skip(reason)
    inputs = made(FP8, device, tokens=32, heads=heads, topk=topk, block_size=64)
    inputs = dataclasses.replace(inputs, sink=torch.randn(heads, device=device))
    inputs.indices[0] = -1
    inputs.indices[1, 0, 10:] = -1
    found = agree(FP8, inputs)
    provider.bind(get_operation("decode"), FP8, inputs, arch)()
    assert tolerance(found, {"out": inputs.out, "lse": inputs.lse}) is None
