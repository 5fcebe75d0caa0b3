"""gather: which rows it reads and writes, what it accepts and refuses; and offsets past 2^31 for both operations."""

import pytest
import torch
from caches import geometry_of

from dsmla_bench.kernels.formats import Geometry, all_formats, get_format
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations.gather import GatherInputs, cp_gather_and_upconvert, plan, reference
from dsmla_bench.kernels.operations.pages import cache_of, load_rows
from dsmla_bench.kernels.operations.tuning import TokenBlock
from dsmla_bench.kernels.operations.write import concat_and_cache

EVERY_FORMAT = pytest.mark.parametrize("fmt", all_formats(), ids=lambda fmt: fmt.key)
EVERY_ROW_FORMAT = pytest.mark.parametrize(
    "fmt", [fmt for fmt in all_formats() if not fmt.suffix_bytes], ids=lambda fmt: fmt.key
)
EVERY_WAY = pytest.mark.parametrize("way", ["kernel", "reference"])


def random_cache(fmt, blocks: int, block_size: int, device: torch.device) -> torch.Tensor:
    geometry = geometry_of(fmt)
    rank = geometry.kv_lora_rank
    values = torch.randn(blocks * block_size, rank + 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    return cache_of(fmt, fmt.quantize(values[:, :rank], values[:, rank:], None).to(device), block_size, geometry)


def gather(way: str, fmt, cache, table, starts, tokens: int, seq_starts=None, geometry=None) -> torch.Tensor:
    """The workspace, poisoned with -7, after a gather by the kernel or by the reference."""
    device, geometry = cache.device, geometry or geometry_of(fmt)
    table = torch.tensor(table, dtype=torch.int32, device=device)
    starts = torch.tensor(starts, dtype=torch.int32, device=device)
    positions = None if seq_starts is None else torch.tensor(seq_starts, dtype=torch.int32, device=device)
    width = geometry.kv_lora_rank + geometry.rope_dim
    workspace = torch.full((tokens, width), -7.0, dtype=torch.bfloat16, device=device)
    if way == "kernel":
        cp_gather_and_upconvert(fmt, cache, table, starts, workspace, positions, geometry=geometry)
    else:
        reference(fmt, GatherInputs(cache, table, starts, workspace, geometry, positions))()
    return workspace


def expected_rows(fmt, cache: torch.Tensor, places: list[tuple[int, int]], geometry=None) -> torch.Tensor:
    page, row = torch.tensor(places, device=cache.device).T
    return torch.cat(fmt.dequantize(load_rows(fmt, cache, page, row), geometry or geometry_of(fmt), None), dim=-1)


@EVERY_WAY
@pytest.mark.parametrize(
    ("key", "nope", "rope"),
    [
        (
            "nvfp4_ds_mla",
            [12, 15, 18, 21, 0.375, 0.75, 0.9375, 1.125],
            [2, 2.5, 3, 3.5, 0.0625, 0.125, 0.15625, 0.1875],
        ),
        ("fp8_ds_mla", [8, 10, 12, 14, 0.25, 0.5, 0.625, 0.75], [8, 10, 12, 14, 0.25, 0.5, 0.625, 0.75]),
    ],
)
def test_small_blocks_and_an_empty_request(device, way, key, nope, rope):
    """Case A13: block size 4, three requests of which the second is empty; every value exactly representable."""
    fmt = get_format(key)
    block, factor = torch.arange(10.0), torch.tensor([1, 1.25, 1.5, 1.75])
    power = 2.0 ** (block - (6 if key == "nvfp4_ds_mla" else 4))
    base = (power[:, None] * factor).view(40, 1)
    latent = base.expand(40, 512) * (6 if key == "nvfp4_ds_mla" else 1)
    cache = fmt.quantize(latent.bfloat16(), base.expand(40, 64).bfloat16(), None).view(10, 4, -1).to(device)
    found = gather(way, fmt, cache, [[7, 2], [5, 9], [3, 1]], [0, 5, 5], 8).float().cpu()
    assert torch.equal(found[:, :512], torch.tensor(nope)[:, None].expand(8, 512))
    assert torch.equal(found[:, 512:], torch.tensor(rope)[:, None].expand(8, 64))


@EVERY_WAY
@EVERY_FORMAT
def test_positions_that_start_inside_a_page(fmt, device, way):
    """seq_starts 3, 17 and 5 with block size 4; a request that crosses pages, one of a single row, one to the last."""
    cache = random_cache(fmt, 24, 4, device)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1)).view(3, 8)
    found = gather(way, fmt, cache, order.tolist(), [0, 7, 8], 12, [3, 17, 5])
    places = [
        (request, position)
        for request, count, first in ((0, 7, 3), (1, 1, 17), (2, 4, 5))
        for position in range(first, first + count)
    ]
    expected = expected_rows(fmt, cache, [(int(order[r, p // 4]), p % 4) for r, p in places])
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))


@EVERY_WAY
def test_many_short_requests_among_empty_ones(device, way):
    """150 requests of 0 to 3 rows: more than one block of starts, runs of empty ones at both ends."""
    fmt = get_format("fp8_ds_mla")
    lengths = torch.randint(0, 4, (150,), generator=torch.Generator().manual_seed(2))
    lengths[:5] = lengths[-5:] = 0
    starts = (lengths.cumsum(0) - lengths).tolist()
    cache = random_cache(fmt, 150, 3, device)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(3))
    found = gather(way, fmt, cache, order[:, None].tolist(), starts, int(lengths.sum()))
    places = [(int(order[r]), p) for r in range(150) for p in range(int(lengths[r]))]
    assert torch.equal(found.view(torch.int16), expected_rows(fmt, cache, places).view(torch.int16))


@pytest.mark.parametrize("requests", [1, 32, 33, 1025])
@pytest.mark.parametrize("block_tokens", [1, 4])
def test_owners_are_found_among_any_number_of_requests(device, requests, block_tokens):
    """Starts are looked at 32 at a time, from far apart to all of them; a program's rows may have more between them."""
    fmt = get_format("bf16")
    lengths = torch.zeros(requests, dtype=torch.int64)
    lengths[torch.randperm(requests, generator=torch.Generator().manual_seed(4))[:24]] = 2
    lengths[0] = 3
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
    pages = torch.randperm(requests + 7, generator=torch.Generator().manual_seed(5))[:requests]
    workspace = torch.full((int(lengths.sum()), 576), -7.0, dtype=torch.bfloat16, device=device)
    cache = random_cache(fmt, requests + 7, 3, device)
    table = pages.to(torch.int32)[:, None].to(device)
    inputs = GatherInputs(cache, table, starts.to(device), workspace)
    plan(fmt, inputs, device_arch(device), TokenBlock(block_tokens, 1)).run()
    owners = torch.repeat_interleave(torch.arange(requests), lengths)
    places = [(int(pages[owner]), row - int(starts[owner])) for row, owner in enumerate(owners.tolist())]
    assert torch.equal(workspace.view(torch.int16), expected_rows(fmt, cache, places).view(torch.int16))


def test_a_table_without_columns_fills_nothing(device):
    fmt = get_format("bf16")
    cache, table = random_cache(fmt, 1, 2, device), torch.zeros(3, 0, dtype=torch.int32, device=device)
    workspace = torch.full((4, 576), -7.0, dtype=torch.bfloat16, device=device)
    cp_gather_and_upconvert(fmt, cache, table, torch.tensor([0, 1, 2], device=device), workspace)
    assert bool((workspace == -7).all())


@EVERY_WAY
@pytest.mark.parametrize("first", [16, 1])
def test_rows_before_the_first_start_stay_untouched(device, way, first):
    """Case A13, bad input: no request owns the leading rows, and nothing outside table or cache is read for them."""
    fmt = get_format("nvfp4_ds_mla")
    cache = random_cache(fmt, 5, 4, device)
    found = gather(way, fmt, cache, [[4, 3, 2, 1, 0]], [first], 17)
    assert bool((found[:first] == -7).all())
    places = [((4 - p // 4), p % 4) for p in range(17 - first)]
    assert torch.equal(found[first:].view(torch.int16), expected_rows(fmt, cache, places).view(torch.int16))


@EVERY_WAY
def test_pages_outside_the_table_or_the_cache_are_not_read(device, way):
    fmt = get_format("bf16")
    cache = random_cache(fmt, 3, 2, device)
    found = gather(way, fmt, cache, [[1, -1, 3]], [0], 9)
    assert torch.equal(found[:2], expected_rows(fmt, cache, [(1, 0), (1, 1)]))
    assert bool((found[2:] == -7).all())


@EVERY_ROW_FORMAT
def test_padded_pools_and_workspaces(fmt, device):
    geometry = geometry_of(fmt)
    width, row_bytes = geometry.kv_lora_rank + geometry.rope_dim, fmt.row_bytes(geometry)
    pool = torch.zeros(3, 5, 1216, dtype=torch.uint8, device=device)
    cache = pool[:, :4, :row_bytes]
    cache[:] = random_cache(fmt, 3, 4, device)
    wide = torch.full((10, 640), -7.0, dtype=torch.bfloat16, device=device)
    table = torch.tensor([[2, 9], [0, 1]], dtype=torch.int32, device=device)
    starts = torch.tensor([0, 3, 99], dtype=torch.int64, device=device)
    inner = wide[:, 32 : 32 + width]
    cp_gather_and_upconvert(fmt, cache, table, starts, inner, geometry=geometry)
    places = [(2, 0), (2, 1), (2, 2), *((0, p) for p in range(4)), *((1, p) for p in range(3))]
    assert torch.equal(inner.view(torch.int16), expected_rows(fmt, cache, places).view(torch.int16))
    assert bool((wide[:, :32] == -7).all())
    assert bool((wide[:, 32 + width :] == -7).all())


@pytest.mark.parametrize("key", ["bf16", "fp8"])
@pytest.mark.parametrize(("rank", "rope"), [(256, 64), (512, 0), (192, 32)])
def test_other_geometries(device, key, rank, rope):
    fmt, geometry = get_format(key), Geometry(rank, rope)
    values = torch.randn(8, rank + rope, generator=torch.Generator().manual_seed(4)).bfloat16().to(device)
    cache = fmt.quantize(values[:, :rank], values[:, rank:], None).view(2, 4, -1)
    found = gather("kernel", fmt, cache, [[1, 0]], [0], 6, geometry=geometry)
    places = [(1, 0), (1, 1), (1, 2), (1, 3), (0, 0), (0, 1)]
    assert torch.equal(found, expected_rows(fmt, cache, places, geometry))


@pytest.mark.parametrize("rows", [0, 1025, 1030])
def test_row_counts_around_a_change_of_configuration(device, rows):
    fmt = get_format("fp8")
    cache = random_cache(fmt, 65, 16, device)
    found = gather("kernel", fmt, cache, [list(range(65))], [0], rows)
    expected = torch.cat(fmt.dequantize(cache.view(-1, 576)[:rows]), dim=-1)
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))


def arguments(**change):
    fmt = get_format("nvfp4_ds_mla")
    return {
        "cache": random_cache(fmt, 3, 4, torch.device("cpu")),
        "block_table": torch.tensor([[0, 1], [2, 0]], dtype=torch.int32),
        "workspace_starts": torch.tensor([0, 5], dtype=torch.int32),
        "workspace": torch.full((9, 576), -7.0, dtype=torch.bfloat16),
        **change,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"workspace": torch.zeros(9, 512).bfloat16()},
            r"workspace must be torch.bfloat16 \[n, 576\], found torch.bfloat16 \[9, 512\]",
        ),
        ({"workspace": torch.zeros(9, 576)}, r"workspace must be torch.bfloat16 \[n, 576\], found torch.float32"),
        (
            {"workspace": torch.zeros(576).bfloat16().expand(9, 576)},
            "workspace rows must not overlap, found row stride 0",
        ),
        (
            {"block_table": torch.zeros(2, 2, dtype=torch.int64)},
            r"block_table must be torch.int32 \[n, any\], found torch.int64",
        ),
        (
            {"workspace_starts": torch.zeros(1, dtype=torch.int32)},
            r"workspace_starts must be .* \[>= 2\], found torch.int32 \[1\]",
        ),
        ({"seq_starts": torch.zeros(1, dtype=torch.int32)}, r"seq_starts must be .* \[>= 2\]"),
        ({"cache": torch.zeros(3, 4, 656, dtype=torch.uint8)}, r"cache of nvfp4_ds_mla must be torch.uint8 .* 352\]"),
        ({"workspace_starts": torch.tensor([1, 5])}, r"workspace_starts\[0\] must be 0, found 1"),
        ({"workspace_starts": torch.tensor([0, 10])}, r"workspace_starts must ascend to at most 9, found \[0, 10\]"),
        (
            {"block_table": torch.tensor([[0, 3], [2, 0]], dtype=torch.int32)},
            r"block_table\[0\] holds pages \[0, 3\], but the cache has",
        ),
        (
            {"seq_starts": torch.tensor([4, 0], dtype=torch.int32)},
            "request 0 needs 3 pages, but block_table has 2 columns",
        ),
        ({"seq_starts": torch.tensor([0, -1], dtype=torch.int32)}, r"seq_starts must not be negative, found \[0, -1\]"),
    ],
)
def test_what_cannot_be_right_is_refused_before_a_launch(change, message):
    given = arguments(**change)
    before = given["workspace"].clone()
    with pytest.raises(ValueError, match=message):
        cp_gather_and_upconvert(get_format("nvfp4_ds_mla"), **given, check_values=True)
    assert torch.equal(given["workspace"], before)


EMPTY_REQUEST = {
    "block_table": torch.tensor([[9, -1], [0, 1], [2, 0]], dtype=torch.int32),
    "workspace_starts": torch.tensor([0, 0, 5]),
}
"""The pages of the first one are not in the cache."""


@pytest.mark.parametrize("change", [{}, EMPTY_REQUEST], ids=["requests of 5 and 4", "an empty one before them"])
def test_right_input_passes_the_check(device, change):
    given = {name: tensor.to(device) for name, tensor in arguments(**change).items()}
    cp_gather_and_upconvert(get_format("nvfp4_ds_mla"), **given, check_values=True)


FAR_BLOCKS = [("nvfp4_ds_mla", 95326), ("fp8_ds_mla", 51151), ("bf16", 29128), ("fp8", 58255), ("bf16", 58255)]


def write_then_gather_far_away(fmt, block: int, slot_type: torch.dtype, device: torch.device) -> None:
    """One token into the first row whose byte offset passes 2^31, and back, with a sentinel at the cache's start."""
    assert block * fmt.page_bytes(64) >= 2**31
    cache = torch.empty(block + 1, 64, fmt.row_bytes(), dtype=torch.uint8, device=device)
    cache[:4] = 0xAA
    values = torch.randn(1, 576, generator=torch.Generator().manual_seed(5)).bfloat16().to(device)
    slot = torch.tensor([block * 64], dtype=slot_type, device=device)
    concat_and_cache(fmt, values[:, :512], values[:, 512:], cache, slot, check_values=True)
    row = fmt.quantize(values[:, :512], values[:, 512:], None)
    assert torch.equal(cache[block, :1], row)
    assert bool((cache[:4] == 0xAA).all())
    found = gather("kernel", fmt, cache, [[block]], [0], 1)
    assert torch.equal(found, torch.cat(fmt.dequantize(row), dim=-1))


@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
@pytest.mark.parametrize(("key", "block"), FAR_BLOCKS[:3])
def test_byte_offsets_past_2_31_interpreted(key, block, slot_type, device):
    """Case A11, index arithmetic: only the touched pages of the 2 GiB pool are ever backed by memory."""
    write_then_gather_far_away(get_format(key), block, slot_type, device)


@pytest.mark.gpu
@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
@pytest.mark.parametrize(("key", "block"), FAR_BLOCKS)
def test_byte_offsets_past_2_31_on_a_gpu(key, block, slot_type, device):
    """Case A11: the compiled kernels, with both slot types, also past 2^31 elements."""
    write_then_gather_far_away(get_format(key), block, slot_type, device)


@pytest.mark.gpu
def test_workspace_offsets_past_2_31_on_a_gpu(device):
    """The gathered side passes 2^31 bytes too: 1 864 136 rows of 1 152 bytes, of which the last page is compared."""
    fmt, rows = get_format("fp8"), 1_864_200
    cache = random_cache(fmt, 64, 64, device)
    pages = -(-rows // 64)
    table = (torch.arange(pages, dtype=torch.int32) % 64)[None].tolist()
    found = gather("kernel", fmt, cache, table, [0], rows)
    last = [((row // 64) % 64, row % 64) for row in range(rows - 64, rows)]
    assert torch.equal(found[-64:].view(torch.int16), expected_rows(fmt, cache, last).view(torch.int16))
