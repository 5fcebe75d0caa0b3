"""The correctness gate: no kernel is timed before its bytes equal the reference's.

Every output is poisoned first, so that a byte that a kernel does not write cannot pass for a right one, and a byte that
it must not touch shows when it does. All bytes are compared, and the differences counted. Only an operation whose order
of additions is open has a tolerance, its own (``Operation.tolerance``); everywhere else one differing byte is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dsmla_bench.kernels.operations import Operation, Outputs

POISON = 0xAA


@dataclass(frozen=True)
class GateResult:
    """Bytes compared, bytes that differ, and one sentence for the row of a kernel that failed; None for a right one."""

    bytes_compared: int
    bytes_differing: int
    reason: str | None = None


def outputs_of(run: Callable[[], None], outputs: Outputs) -> dict[str, torch.Tensor]:
    """Poison ``outputs``, run, and return copies of them by name."""
    for tensor in outputs.values():
        _bytes(tensor).fill_(POISON)
    run()
    return {name: tensor.clone() for name, tensor in outputs.items()}


def compare(operation: Operation, found: Outputs, expected: Outputs) -> GateResult:
    """Compare what ``outputs_of`` returned for a kernel and for the reference, as the operation demands."""
    compared = differing = 0
    first = ""
    for name, want in expected.items():
        got, want = _bytes(found[name]), _bytes(want)
        unequal = got != want
        compared += want.numel()
        count = int(unequal.sum())
        if count and not first:
            place = tuple(int(index) for index in unequal.nonzero()[0])
            first = f"{name}{list(place)} is 0x{int(got[place]):02X}, expected 0x{int(want[place]):02X}"
        differing += count
    if not differing:
        return GateResult(compared, 0)
    reason = f"{differing} of {compared} bytes differ ({differing / compared:.2%}); first: {first}"
    if operation.tolerance is None:
        return GateResult(compared, differing, reason)
    beyond = operation.tolerance(found, expected)
    return GateResult(compared, differing, beyond and f"{beyond}; {reason}")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)
