"""write: which rows it touches, what it accepts, what it refuses before launching anything."""

import pytest
import torch
from caches import geometry_of, poisoned_cache, rows_in

from dsmla_bench.kernels.formats import all_formats, get_format
from dsmla_bench.kernels.operations.write import WriteInputs, concat_and_cache, reference

EVERY_FORMAT = pytest.mark.parametrize("fmt", all_formats(), ids=lambda fmt: fmt.key)
EVERY_ROW_FORMAT = pytest.mark.parametrize(
    "fmt", [fmt for fmt in all_formats() if not fmt.suffix_bytes], ids=lambda fmt: fmt.key
)
ONES = {
    "nvfp4_ds_mla": [0x77] * 256 + [0x38] * 64 + [0x23] * 32,
    "fp8_ds_mla": [0x78] * 512 + [0x00, 0x00, 0x80, 0x3B] * 4 + [0x80, 0x3F] * 64,
}


def latents(count: int, device: torch.device, rank: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.randn(count, rank + 64, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    return values[:, :rank].contiguous(), values[:, rank:].contiguous()


@pytest.mark.parametrize("write", ["kernel", "reference"])
@pytest.mark.parametrize(("key", "untouched"), [("nvfp4_ds_mla", 44000), ("fp8_ds_mla", 82000)])
def test_negative_slots_are_skipped_and_nothing_else_is_touched(device, key, untouched, write):
    """Case A9: slots 5, none, 0 and 63 of two blocks filled with 0xAA."""
    fmt = get_format(key)
    cache = poisoned_cache(fmt, 2, 64, device)
    slots = torch.tensor([5, -1, 0, 63], device=device)
    kv_c, k_pe = torch.ones(4, 512, device=device).bfloat16(), torch.ones(4, 64, device=device).bfloat16()
    if write == "kernel":
        concat_and_cache(fmt, kv_c, k_pe, cache, slots)
    else:
        reference(fmt, WriteInputs(kv_c, k_pe, cache, slots))()
    flat = cache.view(128, -1).cpu()
    for slot in (5, 0, 63):
        assert flat[slot].tolist() == ONES[key]
    assert int((flat == 0xAA).sum()) == untouched
    if key == "nvfp4_ds_mla":
        assert float(fmt.dequantize(flat[:1])[0][0, 0]) == 1.03125


@EVERY_FORMAT
@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
def test_slots_of_both_types_any_negative_value_and_longer_latents(fmt, device, slot_type):
    """slot_mapping decides how many tokens there are: kv_c and k_pe may be padded for a captured graph."""
    kv_c, k_pe = latents(9, device, geometry_of(fmt).kv_lora_rank)
    slots = torch.tensor([17, -7, 3, -(2**31), 0], dtype=slot_type, device=device)
    cache = poisoned_cache(fmt, 5, 4, device)
    expected = rows_in(fmt, cache)
    concat_and_cache(fmt, kv_c, k_pe, cache, slots)
    expected[[17, 3, 0]] = fmt.quantize(kv_c[[0, 2, 4]], k_pe[[0, 2, 4]], None)
    assert torch.equal(rows_in(fmt, cache), expected)


@EVERY_ROW_FORMAT
def test_padded_pools_and_slices_of_a_wider_projection(fmt, device):
    """Strides beyond the contents: rows padded to 1 216 bytes, pages with a gap, latents out of a 2 112-wide tensor."""
    geometry = geometry_of(fmt)
    width, row_bytes = geometry.kv_lora_rank, fmt.row_bytes(geometry)
    projection = torch.randn(6, 2112, generator=torch.Generator().manual_seed(1)).bfloat16().to(device)
    kv_c, k_pe = projection[:, 2048 - width : 2048], projection[:, 2048:]
    pool = torch.full((3, 5, 1216), 0xAA, dtype=torch.uint8, device=device)
    cache = pool[:, :4, :row_bytes]
    slots = torch.tensor([11, 2, 3, 4, 7, 0], device=device)
    concat_and_cache(fmt, kv_c, k_pe, cache, slots)
    expected = torch.full_like(pool, 0xAA)
    expected[slots // 4, slots % 4, :row_bytes] = fmt.quantize(kv_c, k_pe, None)
    assert torch.equal(pool, expected)


@EVERY_FORMAT
@pytest.mark.parametrize("offset", [1, 3])
def test_latents_at_odd_addresses_and_strides(fmt, device, offset):
    """A slice that starts at an odd element of rows 577 wide: no 16-byte alignment to count on."""
    wide = torch.randn(5, 577 + offset, generator=torch.Generator().manual_seed(2)).bfloat16().to(device)
    kv_c, k_pe = wide[:, offset : offset + geometry_of(fmt).kv_lora_rank], wide[:, offset + 512 : offset + 576]
    cache = poisoned_cache(fmt, 1, 8, device)
    concat_and_cache(fmt, kv_c, k_pe, cache, torch.arange(5, device=device))
    assert torch.equal(rows_in(fmt, cache)[:5], fmt.quantize(kv_c, k_pe, None))


@pytest.mark.parametrize("block_size", [1, 16, 48, 256])
def test_any_block_size(device, block_size):
    fmt = get_format("nvfp4_ds_mla")
    kv_c, k_pe = latents(7, device)
    blocks = 300 // block_size + 1
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(3))[:7].to(device)
    cache = poisoned_cache(fmt, blocks, block_size, device)
    concat_and_cache(fmt, kv_c, k_pe, cache, slots)
    assert torch.equal(cache.view(-1, 352)[slots], fmt.quantize(kv_c, k_pe, None))


@pytest.mark.parametrize("key", ["bf16", "fp8"])
@pytest.mark.parametrize(("rank", "rope"), [(256, 64), (512, 0), (192, 32)])
def test_other_geometries(device, key, rank, rope):
    """Case A14, and a rank that is no power of two."""
    fmt = get_format(key)
    values = torch.randn(3, rank + rope, generator=torch.Generator().manual_seed(4)).bfloat16().to(device)
    expected = fmt.quantize(values[:, :rank], values[:, rank:], None)
    cache = torch.full((1, 4, expected.shape[1]), 0xAA, dtype=torch.uint8, device=device)
    concat_and_cache(fmt, values[:, :rank], values[:, rank:], cache, torch.tensor([3, 0, 1], device=device))
    assert torch.equal(cache[0, [3, 0, 1]], expected)
    assert bool((cache[0, 2] == 0xAA).all())


def test_no_tokens_is_no_work(device):
    fmt = get_format("fp8_ds_mla")
    cache = poisoned_cache(fmt, 1, 4, device)
    kv_c, k_pe = latents(0, device)
    concat_and_cache(fmt, kv_c, k_pe, cache, torch.empty(0, dtype=torch.int64, device=device), check_values=True)
    assert bool((cache == 0xAA).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_c": torch.zeros(4, 256).bfloat16()}, r"fp8_ds_mla needs 512\+64, got 256\+64"),
        ({"kv_c": torch.zeros(4, 512)}, r"kv_c must be torch.bfloat16 \[n, any\], found torch.float32 \[4, 512\]"),
        ({"k_pe": torch.zeros(4, 32).bfloat16()}, r"needs 512\+64, got 512\+32"),
        ({"kv_c": torch.zeros(3, 512).bfloat16()}, "kv_c must have at least a row for each of 4 tokens, found 3"),
        ({"kv_c": torch.zeros(512, 4).bfloat16().T}, "kv_c must be contiguous in its last dimension, found stride 4"),
        (
            {"slot_mapping": torch.zeros(4)},
            r"slot_mapping must be torch.int32 or torch.int64 \[>= 0\], found torch.float32",
        ),
        (
            {"cache": torch.zeros(1, 4, 576, dtype=torch.uint8)},
            r"cache of fp8_ds_mla must be torch.uint8 .* 656\], found",
        ),
        ({"cache": torch.zeros(1, 4, 656, dtype=torch.int8)}, "found torch.int8"),
        (
            {"cache": torch.zeros(1, 4, 657, dtype=torch.uint8)[:, :, 1:]},
            "cache address .* must be a multiple of 4 bytes",
        ),
        (
            {"cache": torch.zeros(2, 4, 658, dtype=torch.uint8)[:, :, :656]},
            "row stride .* a multiple of 4 bytes, found 658",
        ),
        ({"cache": torch.zeros(1, 1, 656, dtype=torch.uint8).expand(1, 4, 656)}, "656 bytes one after another"),
        (
            {"cache": torch.zeros(5, 656, dtype=torch.uint8).as_strided((2, 4, 656), (656, 656, 1))},
            r"cache pages of fp8_ds_mla must not overlap, found strides \(656, 656, 1\)",
        ),
        ({"cache": torch.zeros(1, 0, 656, dtype=torch.uint8)}, r"pages of 1 token or more, found \[1, 0, 656\]"),
        ({"slot_mapping": torch.arange(8)[::2]}, "slot_mapping must be contiguous, found stride 2"),
        ({"scale": torch.ones(2)}, r"scale of fp8_ds_mla must be one torch.float32 value, found torch.float32 \[2\]"),
        ({"scale": 0.3}, "scale of fp8_ds_mla must be a tensor of one torch.float32 value, found 0.3"),
        (
            {"slot_mapping": torch.arange(4, device="meta")},
            "one device, found kv_c on cpu, k_pe on cpu, cache on cpu, slot_mapping on meta",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_before_a_launch(change, message):
    cache = torch.zeros(1, 4, 656, dtype=torch.uint8)
    kv_c, k_pe = latents(4, torch.device("cpu"))
    arguments = {"kv_c": kv_c, "k_pe": k_pe, "cache": cache, "slot_mapping": torch.arange(4), **change}
    with pytest.raises(ValueError, match=message):
        concat_and_cache(get_format("fp8_ds_mla"), **arguments)
    assert bool((cache == 0).all())


def test_packed_codes_need_rows_that_begin_at_multiples_of_four():
    """They are moved four bytes at a time, though no item has more than one."""
    cache = torch.zeros(2, 4, 354, dtype=torch.uint8)[:, :, :352]
    with pytest.raises(ValueError, match="row stride of nvfp4_ds_mla must be a multiple of 4 bytes, found 354"):
        concat_and_cache(get_format("nvfp4_ds_mla"), *latents(4, torch.device("cpu")), cache, torch.arange(4))


def test_slots_beyond_the_cache_are_refused_on_request(device):
    fmt = get_format("bf16")
    kv_c, k_pe = latents(3, device)
    cache = poisoned_cache(fmt, 2, 4, device)
    with pytest.raises(ValueError, match=r"slot_mapping\[1\] is 8, but the cache has slots 0 to 7"):
        concat_and_cache(fmt, kv_c, k_pe, cache, torch.tensor([0, 8, -1], device=device), check_values=True)
    assert bool((cache == 0xAA).all())
