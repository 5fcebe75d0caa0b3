"""Theoretical occupancy against values worked by hand from the limits of a multiprocessor."""

import pytest

from dsmla_bench.bench.occupancy import Occupancy, occupancy
from dsmla_bench.kernels.arch import KNOWN, Architecture

HAND = {
    # 32 · 32 = 1024 registers a warp, 16384 // 1024 = 16 warps in each of four partitions: all 64
    ("sm90", 32, 0, 4): Occupancy(100.0, 16, "warps"),
    # 33 · 32 = 1056, allocated as 1280; 12 warps a partition, 48 of 64
    ("sm90", 33, 0, 4): Occupancy(75.0, 12, "registers"),
    # 72 · 32 = 2304, which is nine units; 7 warps a partition, 28 of 64, 14 blocks of two
    ("sm90", 72, 1024, 2): Occupancy(43.75, 14, "registers"),
    # the same on 48 warps: 28 of 48
    ("sm120", 72, 1024, 2): Occupancy(100 * 28 / 48, 14, "registers"),
    # 8 warps a partition, 32 in all, but blocks of five warps: six of them
    ("sm100", 64, 0, 5): Occupancy(100 * 30 / 64, 6, "registers"),
    # 255 · 32 = 8160, allocated as 8192; two warps a partition
    ("sm103", 255, 0, 8): Occupancy(12.5, 1, "registers"),
    # blocks of one warp: 32 of them, 24 on consumer parts
    ("sm100", 16, 0, 1): Occupancy(50.0, 32, "blocks"),
    ("sm120", 16, 0, 1): Occupancy(50.0, 24, "blocks"),
    # 33 KiB and one for the system: 228 // 34 = 6 blocks of four warps
    ("sm90", 32, 33 * 1024, 4): Occupancy(37.5, 6, "shared memory"),
    # 100 KiB hold two blocks of 33 + 1
    ("sm120", 32, 33 * 1024, 4): Occupancy(100 * 8 / 48, 2, "shared memory"),
    # one byte more than fits two blocks: 51200 - 1024 + 1, allocated in units of 128
    ("sm120", 32, 50 * 1024 - 1024, 4): Occupancy(100 * 8 / 48, 2, "shared memory"),
    ("sm120", 32, 50 * 1024 - 1024 + 1, 4): Occupancy(100 * 4 / 48, 1, "shared memory"),
}


@pytest.mark.parametrize(("kernel", "expected"), HAND.items(), ids=str)
def test_occupancy_is_what_it_is_by_hand(kernel, expected):
    arch, registers, shared, warps = kernel
    assert occupancy(registers, shared, warps, Architecture.parse(arch).limits) == expected


def test_every_known_architecture_has_limits_and_all_but_one_a_published_part():
    assert [arch.name for arch in KNOWN if arch.limits is None] == []
    assert [arch.name for arch in KNOWN if arch.part is None] == ["sm121"]
    assert Architecture.parse("sm75").limits is None
    h200 = Architecture.parse("sm90")
    assert (h200.published_part, h200.published_gbps, h200.part.sms) == ("H200 SXM", 4800.0, 132)
