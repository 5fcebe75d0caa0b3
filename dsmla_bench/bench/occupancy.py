"""Theoretical occupancy: how many of a multiprocessor's warps a kernel's resources let be resident, and what limits it.

The rules are those of NVIDIA's occupancy calculator, the same for compute capabilities 8.0 to 12.1:

* registers are allocated to a warp in units of 256, and a quarter of the file belongs to each of the four partitions
  that an SM's warps are divided among, so that register-limited warps come in multiples of four;
* shared memory is allocated to a block in units of 128 bytes, and the system keeps 1024 bytes for each block;
* warps and blocks have limits of their own.

Theoretical, because a grid that is too small or blocks of unequal length leave an SM emptier than this.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsmla_bench.kernels.arch import MultiprocessorLimits

WARP_THREADS = 32
REGISTER_UNIT = 256
PARTITIONS = 4
SHARED_UNIT = 128
SHARED_RESERVED = 1024


@dataclass(frozen=True)
class Occupancy:
    """``percent`` of the warps that an SM can hold, in ``blocks`` resident blocks; ``limit`` is what admits no more.

    ``limit`` is "warps", "blocks", "registers" or "shared memory"; where several admit equally few, the first of these.
    """

    percent: float
    blocks: int
    limit: str


def occupancy(registers: int, shared_bytes: int, warps: int, limits: MultiprocessorLimits) -> Occupancy:
    """The occupancy of blocks of ``warps`` warps with ``registers`` per thread and ``shared_bytes`` per block."""
    per_warp = _round_up(max(registers, 1) * WARP_THREADS, REGISTER_UNIT)
    register_warps = limits.registers // PARTITIONS // per_warp * PARTITIONS
    per_block = _round_up(shared_bytes + SHARED_RESERVED, SHARED_UNIT)
    admitted = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": register_warps // warps,
        "shared memory": limits.shared_bytes // per_block,
    }
    limit = min(admitted, key=lambda name: admitted[name])
    blocks = admitted[limit]
    return Occupancy(100 * blocks * warps / limits.warps, blocks, limit)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
