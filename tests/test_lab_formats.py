"""The lab's formats: golden bytes by hand, pages with a suffix and padding, opening caches, and formats of others."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from caches import POISON, geometry_of, hex_of, pages_of, poisoned_cache, rows_in
from plugins import install_project
from processes import ABSENT, run_command

from dsmla_bench.bench import gate
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import Geometry, all_formats, default_formats, get_format
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.operations.gather import cp_gather_and_upconvert
from dsmla_bench.kernels.operations.pages import cache_of, open_cache
from dsmla_bench.kernels.operations.write import WriteInputs, concat_and_cache, reference

LAB = tuple(fmt for fmt in all_formats() if fmt.lab)
V4 = get_format("dsv4_584")
EXAMPLES = Path(__file__).parents[1] / "examples"
NAN, INF = float("nan"), float("inf")


def row_of(key, tiles, tile, device, k_pe=None, scale=None):
    """The row of one token whose tiles of ``tile`` latent values begin as given and whose RoPE values are ``k_pe``."""
    fmt = get_format(key)
    latent, rope = torch.zeros(1, geometry_of(fmt).kv_lora_rank), torch.zeros(1, 64)
    for start, values in ((tile * index, values) for index, values in tiles.items()):
        latent[0, start : start + len(values)] = torch.tensor(values)
    for start, values in (k_pe or {}).items():
        rope[0, start : start + len(values)] = torch.tensor(values)
    factor = None if scale is None else torch.tensor([scale], device=device)
    return fmt.quantize(latent.bfloat16().to(device), rope.bfloat16().to(device), factor).cpu()[0]


def read_back(key, row, scale=None):
    factor = None if scale is None else torch.tensor([scale])
    kv_c, k_pe = get_format(key).dequantize(row[None], geometry_of(get_format(key)), factor)
    return kv_c[0].float(), k_pe[0].float()


# Golden bytes


def test_dsv4_584(device):
    """448 / 448 = 2^0; 3 / 448 is above 2^-8, so 2^-7; below 1e-4 it is 2^-22, with 450 · 2^-22 just above it."""
    low = 2.0**-22
    tiles = {0: [448, -224, 1], 1: [3], 3: [448 * low], 4: [450 * low], 5: [INF, 1], 6: [NAN, 448]}
    row = row_of("dsv4_584", tiles, 64, device, {0: [1.0, NAN]})
    assert hex_of(row[576:]) == "7F 78 69 69 6A FF 7F 00"
    assert hex_of(row[:3]) == "7E F6 38"
    assert [hex_of(row[64 * tile : 64 * tile + 2]) for tile in range(1, 7)] == [
        "7C 00",
        "00 00",
        "7E 00",
        "76 00",
        "7F 00",
        "7F 7E",
    ]
    assert hex_of(row[448:450]) == "80 3F"
    kv_c, k_pe = read_back("dsv4_584", row)
    assert kv_c[[0, 1, 2, 64, 128, 192, 385]].tolist() == [448, -224, 1, 3, 0, 448 * low, 448]
    assert float(kv_c[256]) == 448 * low, "450 loses its last bit"
    assert bool(kv_c[320:384].isnan().all()), "an infinity costs its tile"
    assert float(k_pe[0]) == 1.0


def test_dsv41_mxfp8_528(device):
    """RoPE values are the last two tiles of one vector: 1792 / 448 = 2^2, and 1 / 448 is above 2^-9."""
    row = row_of("dsv41_mxfp8_528", {0: [3.0], 13: [448.0]}, 32, device, {0: [1792.0], 32: [1.0, -0.5]})
    assert hex_of(row[512:]) == "78 " + "69 " * 12 + "7F 81 77"
    assert hex_of(row[[0, 416, 448, 480, 481]]) == "7C 7E 7E 78 F0"
    kv_c, k_pe = read_back("dsv41_mxfp8_528", row)
    assert (float(kv_c[0]), float(kv_c[416])) == (3.0, 448.0)
    assert k_pe[[0, 1, 32, 33]].tolist() == [1792.0, 0.0, 1.0, -0.5]


def test_b12x_nvfp4_432(device):
    """Linear scales and no floor: amax / 6 = 2^-10 is a tie that rounds to zero, and so do the tile's codes."""
    step = 2.0**-10
    tiles = {
        0: [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0],
        1: [-6 * step, NAN],
        2: [9 * step, NAN],
        31: [12.0, -INF],
    }
    row = row_of("b12x_nvfp4_432", tiles, 16, device, {0: [1.0], 63: [-2.0]})
    assert hex_of(row[256:288]) == "38 00 01 " + "00 " * 28 + "7E"
    assert hex_of(row[:4]) == "07 22 44 66"
    assert hex_of(row[8:16]) == "00 00 00 00 00 00 00 00"
    assert hex_of(row[16]) == "76", "4.5 goes to 4, NaN to +6"
    assert hex_of(row[248]) == "F0", "beside an infinity 12 is nothing"
    assert not bool(row[288:304].any())
    assert (hex_of(row[304:306]), hex_of(row[430:])) == ("80 3F", "00 C0")
    kv_c, _ = read_back("b12x_nvfp4_432", row)
    assert kv_c[[0, 1, 2, 16, 32, 33, 497]].tolist() == [6.0, 0.0, 1.0, 0.0, 8 * step, 12 * step, -2688.0]


def test_sglang_nvfp4_416(device):
    """With g = 0.5: 3 / (6 g) = 1. NaN is stored as 0, and an infinity as the largest value, 2688 g."""
    tiles = {0: [3.0, -0.25], 1: [NAN, INF], 2: [-1e-4], 31: [12.0]}
    row = row_of("sglang_nvfp4_416", tiles, 16, device, {0: [1.0, NAN, INF, -INF]}, scale=0.5)
    assert hex_of(row[256:288]) == "38 7E 00 " + "00 " * 28 + "48"
    assert (hex_of(row[0]), hex_of(row[8]), hex_of(row[16]), hex_of(row[248])) == ("97", "70", "00", "07")
    assert hex_of(row[288:296]) == "80 3F 00 00 7F 7F 7F FF"
    kv_c, k_pe = read_back("sglang_nvfp4_416", row, 0.5)
    assert kv_c[[0, 1, 16, 17, 32, 496]].tolist() == [3.0, -0.25, 0.0, 1344.0, 0.0, 12.0]
    assert bool(k_pe.isfinite().all())


# Pages with a suffix


@pytest.mark.parametrize(("block_size", "nbytes"), [(1, 1152), (64, 37440), (72, 42048), (128, 74880)])
def test_a_page_is_its_rows_then_their_scales_then_padding(block_size, nbytes):
    """72 · 584 is 73 · 576: that page needs no padding."""
    assert V4.page_bytes(block_size, V4.geometry) == nbytes


@pytest.mark.parametrize("write", ["kernel", "reference"])
def test_which_byte_of_a_page_holds_which_tokens_scale(device, write):
    """A token in row s of page 1 has its data at byte 576 s and its scales at 4 · 576 + 8 s; no other byte changes."""
    cache = poisoned_cache(V4, 2, 4, device)
    kv_c = (448.0 * 2.0 ** torch.arange(3))[:, None].expand(3, 448).bfloat16().to(device)
    slots = torch.tensor([7, -1, 4], device=device)
    inputs = WriteInputs(kv_c, torch.ones(3, 64, device=device).bfloat16(), cache, slots)
    if write == "kernel":
        concat_and_cache(V4, inputs.kv_c, inputs.k_pe, cache, slots)
    else:
        reference(V4, inputs)()
    pages = pages_of(cache).cpu()
    assert pages.shape == (2, 2880), "4 · 584 = 2336, padded to 5 · 576"
    expected = torch.full_like(pages, POISON)
    for row, byte in ((3, 0x7F), (0, 0x81)):
        data = [0x7E] * 448 + [0x80, 0x3F] * 64
        expected[1, 576 * row : 576 * (row + 1)] = torch.tensor(data, dtype=torch.uint8)
        scales = [byte] * 7 + [0]
        expected[1, 2304 + 8 * row : 2304 + 8 * (row + 1)] = torch.tensor(scales, dtype=torch.uint8)
    assert torch.equal(pages, expected)


def test_pages_of_a_larger_pool(device):
    """Pages with more padding than the format asks for, as where several caches share a pool."""
    pool = torch.full((3, 3 * 2880), POISON, dtype=torch.uint8, device=device)
    cache = pool[:, 2880 : 2880 + 4 * 584].unflatten(1, (4, 584))
    values = torch.randn(5, 512, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    slots = torch.tensor([11, 2, 3, 4, 0], device=device)
    concat_and_cache(V4, values[:, :448], values[:, 448:], cache, slots)
    rows = V4.quantize(values[:, :448], values[:, 448:])
    assert torch.equal(rows_in(V4, cache)[slots], rows)
    assert bool((pool[:, :2880] == POISON).all())
    assert bool((pool[:, 2880 + 4 * 584 :] == POISON).all())
    workspace = torch.empty(3, 512, dtype=torch.bfloat16, device=device)
    table, starts = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([[0, 1]], [0]))
    cp_gather_and_upconvert(V4, cache, table, starts, workspace, starts + 2, geometry=V4.geometry)
    assert torch.equal(workspace, torch.cat(V4.dequantize(rows[1:4]), dim=-1))


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (torch.zeros(2, 4, 1152, dtype=torch.uint8)[:, :, :584], "rows of dsv4_584 cannot be padded, .* found 1152"),
        (
            torch.zeros(2, 4, 584, dtype=torch.uint8),
            "page stride of dsv4_584 must be a multiple of 576 bytes, found 2336",
        ),
        (torch.zeros(2, 4, 576, dtype=torch.uint8), r"must be torch.uint8 \[blocks, block_size, 584\]"),
    ],
)
def test_a_page_that_cannot_be_right_is_refused(cache, message):
    latents = torch.zeros(1, 448).bfloat16(), torch.zeros(1, 64).bfloat16()
    with pytest.raises(ValueError, match=message):
        concat_and_cache(V4, *latents, cache, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("key", ["dsv4_584", "sglang_nvfp4_416"])
def test_an_operation_of_others_reads_these_pages_too(device, key):
    spec = importlib.util.spec_from_file_location("read_rope_of_lab", EXAMPLES / "read_rope.py")
    read_rope = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(read_rope)
    fmt = get_format(key)
    shape = Shape(5, block_size=4, shuffled=True, geometry=geometry_of(fmt))
    inputs = read_rope.make_inputs(fmt, shape, device, torch.Generator(device).manual_seed(0))
    outputs = {"k_pe": inputs.k_pe}
    expected = gate.outputs_of(read_rope.reference(fmt, inputs), outputs)
    found = gate.outputs_of(read_rope.plan(fmt, inputs, device_arch(device)).run, outputs)
    assert gate.compare(read_rope.OPERATIONS[0], found, expected).bytes_differing == 0
    assert len(inputs.k_pe.unique()) > 100


# Opening a cache


def zeros(*shape, dtype=torch.uint8):
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "cache", "geometry"),
    [
        ("nvfp4_ds_mla:up", zeros(3, 64, 352), Geometry()),
        ("nvfp4_ds_mla", zeros(3, 64, 1, 352), Geometry()),
        ("bf16", zeros(3, 64, 320, dtype=torch.bfloat16), Geometry(256, 64)),
        ("fp8_ds_mla", zeros(3, 64 * 656), Geometry()),
        ("dsv4_584", zeros(3, 37440), Geometry(448, 64)),
        ("fp8", zeros(3, 64, 576).view(torch.float8_e4m3fn), Geometry()),
    ],
)
def test_a_cache_is_opened_by_its_formats_name_in_any_shape(name, cache, geometry):
    fmt, opened = open_cache(name, cache, 64, geometry)
    assert fmt is get_format(name)
    assert (opened.dtype, list(opened.shape)) == (torch.uint8, [3, 64, fmt.row_bytes(geometry)])
    assert opened.data_ptr() == cache.data_ptr()


@pytest.mark.parametrize(
    ("name", "cache", "message"),
    [
        (
            None,
            zeros(3, 64, 352),
            "does not tell its format: name it; 352 bytes fit nvfp4_ds_mla:rn, nvfp4_ds_mla:up; say",
        ),
        ("", zeros(3, 37440), r"name it; 37440 bytes fit dsv4_584:pow2 \(448\+64\); say which"),
        (
            "bf16",
            zeros(3, 64, 656),
            "bf16:raw has rows of 1152 bytes, the cache has 656; 656 bytes fit fp8_ds_mla:pow2, fp8",
        ),
        (
            "fp8",
            zeros(3, 64, 577),
            "fp8:per_tensor has rows of 576 bytes, the cache has 577; 577 bytes fit no known format",
        ),
        (
            "fp8",
            zeros(3, 64 * 352),
            "pages of 64 tokens of 36864 bytes, the cache has 22528; 22528 bytes fit nvfp4_ds_mla:rn",
        ),
        ("fp8", zeros(3, 32, 576), r"cache must have 64 tokens a page, found torch.uint8 \[3, 32, 576\]"),
        ("fp8", zeros(576), r"cache must be \[blocks, block_size, width\] or \[blocks, width\]"),
        ("fp8", zeros(3, 64, 8, 72), r"cache must be \[blocks, block_size, width\]"),
        ("fp4", zeros(3, 64, 352), "no format 'fp4'; available: bf16:raw"),
        ("dsv4_584", zeros(3, 64, 584), r"dsv4_584 needs 448\+64, got 512\+64"),
    ],
)
def test_a_width_is_never_guessed(name, cache, message):
    with pytest.raises(ValueError, match=message):
        open_cache(name, cache, 64)


# In the sweep


@pytest.fixture(scope="module")
def compiler():
    """A worker process that compiles."""
    worker = Worker(WorkerConfig("compile"))
    yield worker
    worker.stop()


def test_only_a_name_brings_a_format_of_the_lab_into_the_sweep():
    assert [fmt.name for fmt in default_formats()] == ["bf16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"]
    assert [fmt.name for fmt in LAB] == ["dsv4_584", "dsv41_mxfp8_528", "b12x_nvfp4_432", "sglang_nvfp4_416"]
    axes = Axes(("write",), ("bf16:raw", "dsv4_584:pow2"), ("triton",), tokens=(1,), page_orders=("ordered",))
    cases = expand(axes, Architecture.parse("sm90"))
    assert [(case.kv_lora_rank, case.rope_dim) for case in cases] == [(512, 64), (448, 64)]


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm120"])
def test_the_lab_compiles_for_every_architecture_without_spilling(compiler, arch):
    """At 65536 tokens, where a program needs most registers; with the e2m1 instruction where there is one."""
    keys = tuple(fmt.key for fmt in LAB)
    axes = Axes(("write", "gather"), keys, ("triton",), tokens=(65536,), page_orders=("ordered",))
    for case in expand(axes, Architecture.parse(arch)):
        found = compiler.measure(case)
        assert found.status == "compiled", f"{case}: {found.reason}"
        assert (found.facts["spilled_bytes"], found.facts["registers"] <= 128) == (0, True), str(case)
        if case.operation == "write":
            row_bytes = int(case.format.rpartition("_")[2])
            assert found.facts["bytes_written"] == 65536 * row_bytes
            emulated = "nvfp4" in case.format and arch == "sm90"
            assert found.facts["conversion"] == ("emulated" if emulated else "native")


# A format of another package


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder into which examples/my_format is installed."""
    folder = tmp_path_factory.mktemp("installed")
    install_project(folder, EXAMPLES / "my_format")
    return folder


def test_the_example_package_is_listed(project):
    done = run_command("formats", path=[project])
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "my_format v1 (default) 580 37120 1.986 sm90+ 1 fp32 scale | 512 e4m3 NoPE | 64 e4m3 RoPE" in lines
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_package_is_swept_by_default(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    found = all_formats.__wrapped__()  # the registry is cached; this looks anew and leaves the cache alone
    assert [fmt.default and not fmt.lab for fmt in found if fmt.name == "my_format"] == [True]


def test_the_example_and_the_lab_are_checked_to_the_byte_in_one_sweep(project, tmp_path):
    """Each in its own geometry; bytes of a page of 64 tokens when writing, of 5 tokens when gathering."""
    compared = {"my_format": (64 * 580, 5 * 1152)} | {
        fmt.name: (64 * fmt.row_bytes(fmt.geometry), 5 * 2 * (fmt.geometry.kv_lora_rank + 64)) for fmt in LAB
    }
    axes = ["--ops", "write,gather", "--formats", ",".join(compared), "--providers", "triton", "--tokens", "5"]
    axes += ["--page-orders", "shuffled"]
    done = run_command("kernels", *axes, "--arch", ABSENT.name, "--out", tmp_path, "--json", path=[project])
    assert done.returncode == 0, done.stderr
    rows = {(row["format"], row["operation"]): row for row in json.loads(done.stdout)["rows"]}
    assert len(rows) == 2 * len(compared)
    for name, nbytes in compared.items():
        for row, count in zip((rows[name, "write"], rows[name, "gather"]), nbytes, strict=True):
            assert (row["status"], row["bytes_differing"], row["bytes_compared"]) == ("compiled", 0, count)
            assert (row["spilled_bytes"], row["registers"] > 0) == (0, True)


def test_the_example_package_is_compiled(project, tmp_path):
    axes = ["--formats", "my_format", "--ops", "write", "--arch", "sm100", "--tokens", "1"]
    done = run_command("compile", *axes, "--out", tmp_path, "--json", path=[project], XDG_CACHE_HOME=str(tmp_path))
    (row,) = json.loads(done.stdout)["rows"]
    assert (done.returncode, row["status"], row["conversion"]) == (0, "compiled", "native")


def test_the_example_format_is_right_in_another_geometry(project, monkeypatch, device):
    """Its operations work for the asking, as write and gather do not know one format from another."""
    monkeypatch.syspath_prepend(project)
    (fmt,) = __import__("my_format").FORMATS
    geometry = Geometry(192, 32)
    values = torch.randn(8, 224, generator=torch.Generator().manual_seed(1)).bfloat16()
    values[3], values[4, 0], values[5, 0] = 0.0, NAN, INF
    values = values.to(device)
    rows = fmt.quantize(values[:, :192], values[:, 192:])
    cache = torch.full((2, 4, 228), POISON, dtype=torch.uint8, device=device)
    concat_and_cache(fmt, values[:, :192], values[:, 192:], cache, torch.arange(8, device=device))
    assert torch.equal(cache.view(8, -1), rows)
    workspace = torch.empty(8, 224, dtype=torch.bfloat16, device=device)
    table, starts = (torch.tensor(values, dtype=torch.int32, device=device) for values in ([[0, 1]], [0]))
    cp_gather_and_upconvert(fmt, cache_of(fmt, rows, 4, geometry), table, starts, workspace, geometry=geometry)
    expected = torch.cat(fmt.dequantize(rows, geometry), dim=-1)
    assert torch.equal(workspace.view(torch.int16), expected.view(torch.int16))


def test_every_operation_moves_a_whole_row_of_every_format():
    for fmt in LAB:
        geometry = geometry_of(fmt)
        shape = Shape(96, 3, 16, geometry=geometry)
        assert get_operation("write").traffic(fmt, shape).bytes_written == 96 * fmt.row_bytes(geometry)
