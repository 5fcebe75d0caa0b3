"""The packed e2m1 conversions: their assembly on every input there is, without a GPU, against the definition.

Kernels with them run on a CUDA device alone, in test_encode_decode.py among others.
"""

import numpy as np
import ptx
import pytest
import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.e2m1 import e2m1_from_fp32, fp32_from_e2m1
from dsmla_bench.kernels.formats.e2m1_packed import PACK, UNPACK
from dsmla_bench.kernels.formats.numerics import bf16_from_fp32, fp32_from_e4m3
from dsmla_bench.kernels.formats.nvfp4_ds_mla import encode_scales, scale_codes

SCALES = fp32_from_e4m3(torch.arange(1, 127, dtype=torch.uint8)).numpy()
VALUES = np.arange(65536, dtype=np.uint32)
"""The bits of every bf16 value."""


def nibbles(words):
    """uint32 [n] → codes [n, 8]."""
    return words[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & np.uint32(0xF)


@pytest.mark.parametrize("ulps", [-1, 0, 1], ids="reciprocal {} ulps off".format)
def test_every_bf16_value_under_every_scale_gets_its_code(ulps):
    """The hardware's approximate reciprocal is one ulp off at most."""
    pairs = (VALUES[0::2] | VALUES[1::2] << np.uint32(16)).reshape(-1, 4)
    values = torch.from_numpy((VALUES << np.uint32(16)).view(np.float32))
    for scale in SCALES:
        inverse = ((np.float32(1.0) / scale).view(np.int32) + np.int32(ulps)).view(np.float32)
        carried = scale.view(np.int32) & 0x700000 == 0x700000
        inverse = inverse * np.float32(2.0**-14 * (1.0 + carried * 2.0**-10))
        (found,) = ptx.run(PACK.value, 1, *pairs.T, np.full(len(pairs), inverse.view(np.uint32)))
        expected = e2m1_from_fp32(values * torch.tensor(np.float32(1.0) / scale)).numpy()
        assert np.array_equal(nibbles(found).reshape(-1), expected), scale


def test_every_code_under_every_scale_byte_is_read_exactly():
    """All pairs of codes, at all four places of a chunk, under all 256 scale bytes: NaN, negative ones and 0 too."""
    pairs = np.arange(256, dtype=np.uint32)
    words = pairs | np.roll(pairs, 1) << np.uint32(8) | np.roll(pairs, 2) << np.uint32(16) | pairs << np.uint32(24)
    values = fp32_from_e2m1(torch.from_numpy(nibbles(words).astype(np.uint8)))
    for scale in fp32_from_e4m3(torch.arange(256, dtype=torch.uint8)):
        twice = bf16_from_fp32(scale.repeat(2)).view(torch.int32).numpy().view(np.uint32)
        found = np.stack(ptx.run(UNPACK.value, 4, words, np.repeat(twice, len(words))), axis=1)
        halves = np.stack([found & np.uint32(0xFFFF), found >> np.uint32(16)], axis=2).reshape(-1, 8)
        expected = bf16_from_fp32(values * scale).view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(halves, expected), float(scale)


@triton.jit
def scales_kernel(amax_ptr, codes_ptr, OF_BF16: tl.constexpr, ROUND_UP: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes_ptr + index, encode_scales(tl.load(amax_ptr + index), OF_BF16, ROUND_UP))


@pytest.mark.parametrize("round_up", [False, True])
def test_every_bf16_amax_gets_its_scale(device, round_up):
    bits = torch.arange(32768, dtype=torch.int32)
    amax = (bits << 16).view(torch.float32)[:0x7F81].to(device)  # up to the infinity
    amax = torch.cat([amax, amax[: 32768 - len(amax)]])
    for of_bf16 in (True, False):
        found = torch.empty(len(amax), dtype=torch.uint8, device=device)
        scales_kernel[(8,)](amax, found, OF_BF16=of_bf16, ROUND_UP=round_up, BLOCK=4096)
        assert torch.equal(found, scale_codes(amax, round_up=round_up))
