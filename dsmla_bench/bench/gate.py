"""The correctness gate: no kernel is timed before its bytes equal the reference's.

Every output is poisoned first, so that a byte that a kernel does not write cannot pass for a right one, and a byte that
it must not touch shows when it does. All bytes are compared, and the differences counted; there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

POISON = 0xAA


@dataclass(frozen=True)
class GateResult:
    """Bytes compared and bytes that differ, and the first difference in words."""

    bytes_compared: int
    bytes_differing: int
    first_difference: str | None = None

    @property
    def reason(self) -> str:
        """One sentence for the row of a kernel that failed."""
        share = self.bytes_differing / self.bytes_compared
        counted = f"{self.bytes_differing} of {self.bytes_compared} bytes differ ({share:.2%})"
        return f"{counted}; first: {self.first_difference}"


def outputs_of(run: Callable[[], None], outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Poison ``outputs``, run, and return copies of their bytes by name."""
    for tensor in outputs.values():
        _bytes(tensor).fill_(POISON)
    run()
    return {name: _bytes(tensor).clone() for name, tensor in outputs.items()}


def compare(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> GateResult:
    """Count the bytes of ``found`` that differ from ``expected``; both as ``outputs_of`` returns them."""
    compared = differing = 0
    first: str | None = None
    for name, want in expected.items():
        unequal = found[name] != want
        compared += want.numel()
        count = int(unequal.sum())
        if count and first is None:
            place = [int(index) for index in unequal.nonzero()[0]]
            got, should = (int(tensor[tuple(place)]) for tensor in (found[name], want))
            first = f"{name}{place} is 0x{got:02X}, expected 0x{should:02X}"
        differing += count
    return GateResult(compared, differing, first)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)
