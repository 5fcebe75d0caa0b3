"""How many buffers a cold measurement rotates through, so that nothing a launch touches is still in L2.

A captured graph launches an operation several times, launch i on buffer i modulo the number of buffers; before every
replay a flush reads twice the L2. A buffer is cold when it is touched if, since its last use, at least twice the L2 was
touched: by the other buffers, or by the flush when the graph uses each buffer once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rotation:
    """launches per graph, over ``buffers`` sets of inputs and outputs of ``bytes_per_launch`` bytes each."""

    launches: int
    buffers: int
    bytes_per_launch: int
    l2_bytes: int

    def __post_init__(self) -> None:
        if self.bytes_between_reuses() < 2 * self.l2_bytes:
            raise ValueError(
                f"{self.buffers} buffers of {self.bytes_per_launch} bytes leave {self.bytes_between_reuses()} bytes "
                f"between reuses; a cold measurement needs twice the L2, {2 * self.l2_bytes}"
            )

    def bytes_between_reuses(self) -> int:
        """Bytes touched between two uses of a buffer: inside a graph, or by the flush when none is reused there."""
        if self.buffers >= self.launches:
            return 2 * self.l2_bytes
        return (self.buffers - 1) * self.bytes_per_launch


def plan_rotation(bytes_per_launch: int, l2_bytes: int, launches: int) -> Rotation:
    """The fewest buffers that keep a graph of ``launches`` cold; never more than one per launch."""
    needed = math.ceil(2 * l2_bytes / max(1, bytes_per_launch)) + 1
    return Rotation(launches, min(launches, needed), bytes_per_launch, l2_bytes)
