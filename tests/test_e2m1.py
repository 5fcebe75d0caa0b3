"""The e2m1 rounding of nvfp4_ds_mla without its instruction, proved equal to the definition by exhaustion.

What the instruction computes is the definition (PTX ISA, ``cvt.rn.satfinite.e2m1x2.f32``): the nearest of the eight
magnitudes, ties to the even code, ±6 beyond them, +6 for NaN. Every product that can occur is covered: all 65 536 bf16
values times the fp32 reciprocals of all 126 positive e4m3 scales, 8.3 million.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.e2m1 import E2M1_VALUES, round_to_e2m1

SCALES = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
BLOCK = 65536 * 2


@pytest.fixture(scope="module")
def products():
    """Every bf16 value times the reciprocal of every scale, rounded to fp32 twice as the kernel does: [126, 65536].

    A NaN is positive, as the hardware's product of whatever NaN is.
    """
    values = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        found = values * (np.float32(1.0) / SCALES)[:, None]
    return np.where(np.isnan(found), np.float32(np.nan), found)


@pytest.fixture(scope="module")
def codes(products):
    """The definition's code of every product, uint8: from exact distances to the eight magnitudes."""
    with np.errstate(invalid="ignore"):
        magnitudes = np.minimum(np.abs(products).astype(np.float64), 6.0)
        nearest = np.zeros(products.shape, np.uint8)
        for code in range(1, 8):
            middle = (E2M1_VALUES[code - 1] + E2M1_VALUES[code]) / 2
            nearest += (magnitudes > middle) | ((magnitudes == middle) & (code % 2 == 0))
    return np.where(np.isnan(products), 7, nearest | np.signbit(products) << 3).astype(np.uint8)


def rounded_as_integers(values):
    """``round_to_e2m1`` step by step in numpy: fp32 → codes 0..15. The product that is added is exact."""
    magnitude = np.fmin(np.abs(values), np.float32(6.0))
    power = np.maximum(magnitude, np.float32(1.0)).view(np.uint32) & 0x7F800000
    total = (power.view(np.float32) * np.float32(2**22 + 3) + magnitude).view(np.uint32)
    return (total + (total >> 22)) & 7 | values.view(np.uint32) >> 28 & 8


@triton.jit
def round_kernel(values_ptr, codes_ptr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes_ptr + index, round_to_e2m1(tl.load(values_ptr + index)).to(tl.uint8))


def test_there_are_products_of_every_kind(products, codes):
    assert products.shape == (126, 65536)
    assert set(np.unique(codes)) == set(range(16))
    assert np.isnan(products).any()
    assert np.isinf(products).any()
    ties = np.isin(np.abs(products), [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert ties.sum() > 500


def test_the_definition_is_that_of_ml_dtypes(products, codes):
    """Where that saturates as the instruction does: below 6, and it has no NaN."""
    small = np.abs(products) < 6.0
    found = products[small].astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert np.array_equal(found, codes[small])


def test_integer_arithmetic_gives_every_code_of_the_definition(products, codes):
    assert np.array_equal(rounded_as_integers(products), codes)


def test_the_kernels_function_gives_every_code_of_the_definition(products, codes, device):
    """The Triton function itself, interpreted or compiled, on the same 8.3 million products."""
    values = torch.from_numpy(products.reshape(-1)).to(device)
    found = torch.empty(values.shape, dtype=torch.uint8, device=device)
    round_kernel[(values.numel() // BLOCK,)](values, found, BLOCK=BLOCK)
    assert np.array_equal(found.cpu().numpy(), codes.reshape(-1))
