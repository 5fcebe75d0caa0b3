"""The conversions that define the bytes, held exhaustively against ml_dtypes and against written-out codes."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from caches import hex_of
from triton.runtime import interpreter

from dsmla_bench.kernels.formats import numerics
from dsmla_bench.kernels.formats.e2m1 import e2m1_from_fp32, fp32_from_e2m1
from dsmla_bench.kernels.formats.fp8_ds_mla import pow2_scale
from dsmla_bench.kernels.formats.nvfp4_ds_mla import scale_codes
from dsmla_bench.kernels.interpreter import is_interpreting

ALL_BF16 = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()


def test_e4m3_agrees_with_ml_dtypes_on_every_bf16_value(device):
    found = numerics.e4m3_from_fp32(ALL_BF16.to(device)).cpu().numpy()
    clamped = np.clip(ALL_BF16.numpy(), -448, 448)  # ml_dtypes has NaN where hardware saturates
    expected = np.nan_to_num(clamped).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    expected[np.isnan(ALL_BF16.numpy())] = 0x7F
    assert (found == expected).all()


def test_e4m3_rounds_fp32_ties_to_even_and_one_ulp_beside_them_away(device):
    codes = torch.arange(0x7E, dtype=torch.uint8)
    low, high = (numerics.fp32_from_e4m3(c) for c in (codes, codes + 1))
    ties = (low + high) / 2
    even = codes + (codes & 1)
    for values, expected in (
        (ties, even),
        (ties.nextafter(torch.zeros(())), codes),
        (ties.nextafter(torch.full((), 1e9)), codes + 1),
    ):
        assert torch.equal(numerics.e4m3_from_fp32(values.to(device)).cpu(), expected)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1.0, "7E 7E 7E 7E FE 7E FE 7F 7E 00 80 01"), (2.0, "7E 76 76 77 FE 7E FE 7F 78 00 80 00")],
)
def test_e4m3_saturates_and_divides_by_the_scale(device, scale, expected):
    """Case A4: saturation, infinities, NaN, signed zero, the smallest subnormal; 232 ties to 224."""
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([1000, 448, 464, 466, -1000, inf, -inf, nan, 500, 0, -0.0, 2**-10 * (1 + 2**-7)])
    assert hex_of(numerics.e4m3_from_fp32(numerics.divide(values.to(device), scale))) == expected


def test_e2m1_agrees_with_ml_dtypes_on_a_fine_grid_and_rounds_ties_to_even(device):
    grid = torch.arange(-8 * 64, 8 * 64 + 1) / 64
    found = e2m1_from_fp32(grid.to(device)).cpu()
    expected = torch.from_numpy(np.clip(grid.numpy(), -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    expected[grid == 0] = 0  # the grid's zero is positive
    assert torch.equal(found, expected)
    midpoints = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1_from_fp32(midpoints).tolist() == [0, 2, 2, 4, 4, 6, 6]


def test_e2m1_of_what_is_no_number(device):
    values = torch.tensor([float("inf"), -float("inf"), float("nan"), -float("nan"), 6.5, -7.0, -0.0], device=device)
    assert e2m1_from_fp32(values).tolist() == [7, 15, 7, 7, 7, 15, 8]
    assert fp32_from_e2m1(torch.arange(16, dtype=torch.uint8)).tolist()[:8] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_pow2_scale_equals_the_formula_for_every_bf16_amax(device):
    """2^ceil(log2(max(amax / 448, 1e-4))) in float64, for all 32 640 finite non-negative bf16 values."""
    amax = ALL_BF16[:0x7F80]
    ratio = np.maximum((amax.numpy() / np.float32(448)).astype(np.float32), np.float32(1e-4)).astype(np.float64)
    expected = np.exp2(np.ceil(np.log2(ratio))).astype(np.float32)
    assert (pow2_scale(amax.to(device)).cpu().numpy() == expected).all()


def test_the_two_scale_rules_of_nvfp4_differ_for_1135_of_3178_bf16_amax(device):
    amax = ALL_BF16[(ALL_BF16 > 1e-4) & (ALL_BF16 < 3000)].to(device)
    nearest, up = (scale_codes(amax, round_up=flag) for flag in (False, True))
    assert (len(amax), int((nearest != up).sum())) == (3178, 1135)
    assert bool((numerics.fp32_from_e4m3(up) * 6 >= amax.clamp(max=2688)).all()), "rounded up, no value clips"


def test_divide_is_correctly_rounded_where_a_python_divisor_is_not(device):
    """torch on CUDA multiplies by the reciprocal of a Python number; the definition must not."""
    amax = ALL_BF16[1:0x7F80]
    expected = torch.from_numpy(amax.numpy() / np.float32(448))
    assert torch.equal(numerics.divide(amax.to(device), 448.0).cpu(), expected)


@pytest.mark.skipif(not is_interpreting(), reason="kernels are compiled here")
def test_interpreter_converts_as_hardware_does_under_the_fixture():
    """124.5 carries into the exponent, 1.0625 ties to even, 1000 saturates: the interpreter alone gets all wrong."""
    bits = np.array([124.5, 1.0625, 1000.0], dtype=np.float32).view(np.uint32)
    assert interpreter._convert_float(bits, tl.float32, tl.float8e4nv, None).tolist() == [0x70, 0x38, 0x7E]
    halfway = np.array([1.00390625, 1.01171875], dtype=np.float32).view(np.uint32)
    assert interpreter._convert_float(halfway, tl.float32, tl.bfloat16, None).tolist() == [0x3F80, 0x3F82]
    with pytest.raises(NotImplementedError, match="no corrected conversion from fp32 to fp8e5; add it to"):
        interpreter._convert_float(bits, tl.float32, tl.float8e5, None)


MANTISSAS = torch.arange(0x3F800000, 0x40000000, dtype=torch.int32).view(torch.float32)
"""Every fp32 value from 1 to 2."""


@triton.jit
def pow2_448th_kernel(values_ptr, bits_ptr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(bits_ptr + index, numerics.pow2_448th_bits(tl.load(values_ptr + index)))


@triton.jit
def near_division_kernel(values_ptr, divisor_ptr, quotients_ptr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    divisor = tl.load(divisor_ptr)
    values = tl.load(values_ptr + index).to(tl.float32)
    tl.store(quotients_ptr + index, numerics.near_division(values, divisor, tl.div_rn(1.0, divisor)))


def blocks_of(kernel, values, *arguments):
    """``kernel`` over all of ``values``, fp32 or bf16, in blocks of 65536: what it wrote, fp32."""
    found = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    kernel[(values.numel() // 65536,)](values, *arguments, found, BLOCK=65536)
    return found


@pytest.mark.parametrize("exponent", [-110, 0, 100])
def test_the_power_of_two_above_a_448th_is_right_for_every_mantissa(device, exponent):
    values = (MANTISSAS * 2.0**exponent).to(device)
    found = torch.empty(values.shape, dtype=torch.int32, device=device)
    pow2_448th_kernel[(values.numel() // 65536,)](values, found, BLOCK=65536)
    assert torch.equal(found.view(torch.float32), numerics.ceil_pow2(numerics.divide(values, 448.0)))


def test_a_sixth_is_right_for_every_mantissa_and_saturates(device):
    values = torch.cat([MANTISSAS, MANTISSAS * 64.0]).to(device)
    six = torch.tensor([6.0], device=device)
    assert torch.equal(blocks_of(near_division_kernel, values, six), numerics.divide(values, 6.0))
    largest = torch.tensor([3e38, math.inf]).repeat_interleave(32768).to(device)
    assert blocks_of(near_division_kernel, largest, six).min() > 512


@pytest.mark.parametrize("seed", range(8))
def test_bf16_over_an_ordinary_scale_is_right_for_every_value_that_e4m3_tells_apart(device, seed):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(1, generator=generator) + 1.0
    scale = scale * 2.0 ** torch.randint(-90, 90, (1,), generator=generator)
    values, scale = ALL_BF16.bfloat16().to(device), scale.to(device)
    found, expected = blocks_of(near_division_kernel, values, scale), values.float() / scale
    between = (expected.abs() >= 2.0**-20) & (expected.abs() <= 2.0**10)
    assert between.sum() > 5000
    assert torch.equal(found[between], expected[between])
    codes = [numerics.e4m3_from_fp32(quotients).cpu() for quotients in (found, expected)]
    assert torch.equal(*codes)
