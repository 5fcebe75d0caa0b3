"""Layouts and golden bytes of every format: exact, from arithmetic done by hand."""

import pytest
import torch
from caches import geometry_of, hex_of

from dsmla_bench.kernels.arch import KNOWN, Architecture
from dsmla_bench.kernels.formats import Geometry, all_formats, get_format

SIZES = {
    "bf16": 1152,
    "fp8": 576,
    "fp8_ds_mla": 656,
    "nvfp4_ds_mla": 352,
    "dsv4_584": 584,
    "dsv41_mxfp8_528": 528,
    "b12x_nvfp4_432": 432,
    "sglang_nvfp4_416": 416,
}
PADDED_PAGES = {"dsv4_584": 37440}


def rows_of(key: str, kv_c: list[float], device: torch.device, k_pe: list[float] = (), scale: float | None = None):
    """The row of one token whose leading latent and RoPE values are given and the rest zero."""
    latent, rope = torch.zeros(1, 512), torch.zeros(1, 64)
    latent[0, : len(kv_c)] = torch.tensor(kv_c)
    rope[0, : len(k_pe)] = torch.tensor(k_pe)
    factor = None if scale is None else torch.tensor([scale], device=device)
    return get_format(key).quantize(latent.bfloat16().to(device), rope.bfloat16().to(device), factor).cpu()[0]


def read_back(key: str, row: torch.Tensor) -> torch.Tensor:
    return get_format(key).dequantize(row[None], Geometry(), None)[0][0].float()


def test_fields_fill_every_row_without_gap_or_overlap():
    """Case A14: 1152, 576, 656 and 352 bytes a token; 73 728, 36 864, 41 984 and 22 528 a page of 64."""
    for fmt in all_formats():
        end = 0
        geometry = geometry_of(fmt)
        for field in fmt.fields(geometry):
            assert field.offset == end, f"{fmt.key}: gap before {field.name}"
            end = field.end
        assert end == fmt.row_bytes(geometry) == SIZES[fmt.name]
        assert fmt.page_bytes(64, geometry) == PADDED_PAGES.get(fmt.name, 64 * SIZES[fmt.name])


def test_other_geometries_work_where_nothing_is_hard_wired_and_are_refused_elsewhere():
    """Case A14: kv_lora_rank 256, and no RoPE at all."""
    assert get_format("bf16").row_bytes(Geometry(256, 64)) == 640
    assert get_format("fp8").row_bytes(Geometry(256, 64)) == 320
    assert get_format("bf16").row_bytes(Geometry(512, 0)) == 1024
    for key in ("fp8_ds_mla", "fp8_ds_mla:amax448", "nvfp4_ds_mla", "nvfp4_ds_mla:up"):
        for geometry, text in ((Geometry(256, 64), "256+64"), (Geometry(512, 0), "512+0")):
            with pytest.raises(ValueError, match=rf"needs 512\+64, got {text.replace('+', '[+]')}"):
                get_format(key).row_bytes(geometry)


def test_unknown_format_is_refused_with_what_exists():
    with pytest.raises(ValueError, match=r"no format 'fp4'; available: bf16:raw, fp8_ds_mla:pow2"):
        get_format("fp4")
    with pytest.raises(ValueError, match="no format 'fp8_ds_mla:rn'"):
        get_format("fp8_ds_mla:rn")


@pytest.mark.parametrize(
    ("revision", "scale", "nibbles", "peak", "error"),
    [
        ("rn", "01", "77 77 FF FF 66 66 33 33", 0.01171875, 0.2771),
        ("up", "02", "66 66 EE EE 44 44 22 22", 0.015625, 0.0679),
    ],
)
def test_low_magnitude_nvfp4_tile(device, revision, scale, nibbles, peak, error):
    """Case A1: amax / 6 rounds down to 2^-9, so revision rn clips eight values; up takes the next scale."""
    tile = [value / 1024 for value in [17] * 4 + [-17] * 4 + [8] * 4 + [3] * 4]
    row = rows_of(f"nvfp4_ds_mla:{revision}", tile, device)
    assert (hex_of(row[320]), hex_of(row[:8])) == (scale, nibbles)
    found = read_back(f"nvfp4_ds_mla:{revision}", row)[:16]
    assert float(found[0]) == peak
    want = torch.tensor(tile)
    assert float((found - want).norm() / want.norm()) == pytest.approx(error, abs=5e-5)


def test_e2m1_midpoints_round_to_even(device):
    """Case A2: half away from zero would give 21 43 65 77 A9 CB ED FF."""
    tile = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]
    row = rows_of("nvfp4_ds_mla", tile + [-value for value in tile], device)
    assert (hex_of(row[320]), hex_of(row[:8])) == ("38", "20 42 64 76 A8 CA EC FE")


def test_e2m1_tie_behind_a_rounded_reciprocal_goes_up(device):
    """sf = 0.9375 has a reciprocal that rounds up, so x = 1.25 sf lands above its tie: production's bytes, not 1.0."""
    row = rows_of("nvfp4_ds_mla", [5.625, 1.171875], device)
    assert (hex_of(row[320]), hex_of(row[0])) == ("37", "37")


def test_nvfp4_scales_are_permuted_and_rope_saturates(device):
    """The scale of tile s is at 320 + 8 (s & 3) + (s >> 2); RoPE is unscaled e4m3."""
    values = [0.0] * 512
    for tile in range(32):
        values[16 * tile] = 6.0 * 2.0 ** (tile % 8)
    row = rows_of("nvfp4_ds_mla", values, device, [500.0, -500.0, 1.0, 2.0**-10])
    for tile in range(32):
        assert int(row[320 + 8 * (tile & 3) + (tile >> 2)]) == 0x38 + 8 * (tile % 8)
    assert hex_of(row[256:260]) == "7E FE 38 00"


@pytest.mark.parametrize(
    ("revision", "value", "scale", "code", "back"),
    [
        ("pow2", 0.0, "00 00 00 39", "00", 0.0),
        ("pow2", 1.0, "00 00 80 3B", "78", 1.0),
        ("pow2", 3.0, "00 00 00 3C", "7C", 3.0),
        ("pow2", 448.0, "00 00 80 3F", "7E", 448.0),
        ("pow2", 450.0, "00 00 00 40", "76", 448.0),
        ("pow2", 0.0546875, "00 00 00 39", "7E", 0.0546875),
        ("pow2", 0.0625, "00 00 80 39", "78", 0.0625),
        ("amax448", 1.0, "25 49 12 3B", "7E", None),
        ("amax448", 450.0, "49 92 80 3F", "7E", None),
        ("amax448", 0.0, "00 00 80 00", "00", 0.0),
    ],
)
def test_fp8_ds_mla_scale_of_a_tile_with_one_value(device, revision, value, scale, code, back):
    """Case A5: scale bytes, code and what a reader gets; exact powers of two are not doubled."""
    key = f"fp8_ds_mla:{revision}"
    row = rows_of(key, [value], device)
    assert (hex_of(row[512:516]), hex_of(row[0])) == (scale, code)
    if back is not None:
        assert float(read_back(key, row)[0]) == back


def test_fp8_ds_mla_scale_of_448_times_a_power_of_two_is_that_power(device):
    for exponent in range(-10, 8):
        scale = rows_of("fp8_ds_mla", [448.0 * 2.0**exponent], device)[512:516]
        assert float(scale.contiguous().view(torch.float32)) == 2.0**exponent


def test_external_scale_moves_fp8_and_nothing_else(device):
    """Case C11: an uncalibrated scale saturates; the formats with scales of their own ignore it."""
    values = [600.0, 450.0, 100.0, 1.0, 0.01]
    assert hex_of(rows_of("fp8", values, device)[:5]) == "7E 7E 6C 38 05"
    assert hex_of(rows_of("fp8", values, device, scale=600 / 448)[:5]) == "7E 7A 69 34 04"
    for key in ("fp8_ds_mla", "nvfp4_ds_mla"):
        assert torch.equal(rows_of(key, values, device), rows_of(key, values, device, scale=0.3))


def test_bf16_keeps_every_bit_of_bf16_and_rounds_fp32():
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(128, 512)
    rope = torch.zeros(128, 64, dtype=torch.bfloat16)
    fmt = get_format("bf16")
    back, _ = fmt.dequantize(fmt.quantize(bits, rope, None), Geometry(), None)
    assert torch.equal(back.view(torch.int16), bits.view(torch.int16))
    rounded = fmt.quantize(torch.full((1, 512), 1.00390625), torch.full((1, 64), float("nan")), None)
    assert hex_of(rounded[0, :2]) == "80 3F"
    assert hex_of(rounded[0, -2:]) == "FF 7F"


@pytest.mark.parametrize(
    ("capability", "name", "nvfp4", "fp8"),
    [
        ((8, 0), "sm_80", None, None),
        ((8, 9), "sm_89", None, None),
        ((9, 0), "sm_90", "emulated", "native"),
        ((10, 0), "sm_100", "native", "native"),
        ((10, 3), "sm_103", "native", "native"),
        ((12, 0), "sm_120", "native", "native"),
        ((12, 1), "sm_121", "native", "native"),
    ],
)
def test_architectures_are_named_and_gated_right(capability, name, nvfp4, fp8):
    """Case A15."""
    arch = Architecture.from_capability(capability)
    assert arch.label == name
    assert arch in KNOWN
    assert Architecture.parse(name) == Architecture.parse(arch.name) == arch
    assert get_format("nvfp4_ds_mla").conversion(arch) == nvfp4
    assert get_format("fp8_ds_mla").conversion(arch) == fp8
    assert get_format("bf16").conversion(arch) == "none"


def test_architecture_that_is_none_is_refused():
    with pytest.raises(ValueError, match="'sm12' is none that Triton compiles for; known: sm80"):
        Architecture.parse("sm12")
    with pytest.raises(ValueError, match="'hopper' is not of the form sm90"):
        Architecture.parse("hopper")
