"""A tolerance in steps: for operations that compute in fp32, in an order of their own, before they round.

The order of a sum moves its last bit, and so does a multiplication that a compiler fuses into an addition; a value then
rounds to the neighbouring code where it lay that close to a tie. So two right kernels differ by one step of the
output's type, in few places. ``one_step`` admits that and no more: no value further away than one step, and of each
output at most one value in 10 000, beside three so that small outputs are judged alike. Steps are counted in codes of
the type (0 and -0 are one value), NaN against a number is beyond all of them, and integers must be equal.

Scales in fp32 carry the sum's last bits themselves: a few ulp are no step there, a factor of two is one. Where a scale
moves by a step, the codes below it move with it by more than one, and are counted as one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dsmla_bench.kernels.operations.base import Outputs

SHARE = 10_000
FREE = 3
BEYOND = 1 << 40
_ULPS = 8
_SIGNED = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}


def one_step(found: Outputs, expected: Outputs, scales: Mapping[str, str] | None = None) -> str | None:
    """``Operation.tolerance``: why ``found`` is further from ``expected`` than the module admits; None when it is not.

    ``scales`` names the output with the scales, one or more for each row, of an output of codes.
    """
    for name, want in expected.items():
        apart = steps_apart(found[name], want)
        scale = (scales or {}).get(name, "")
        if scale in expected:
            moved = (steps_apart(found[scale], expected[scale]) == 1).any(-1, keepdim=True)
            apart = torch.where(moved, apart.clamp(max=1), apart)
        if far := int((apart > 1).sum()):
            return f"{far} of {apart.numel()} values of {name} are more than one step away"
        if (near := int(apart.sum())) > apart.numel() / SHARE + FREE:
            return f"{near} of {apart.numel()} values of {name} are one step away, more than 1 in {SHARE}"
    return None


def steps_apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How many steps lie between two tensors of one type and shape, int64 of that shape; BEYOND where none count.

    Floating-point types by the module's rules, ue8m0 as exponents, uint8 as bytes of two e2m1 codes (the larger of
    both), others as equal or not.
    """
    if found.dtype == torch.float32:
        return _scales_apart(found, expected)
    if found.dtype in _SIGNED:
        apart = (_ordered(found) - _ordered(expected)).abs()
        return apart.masked_fill_(found.float().isnan() != expected.float().isnan(), BEYOND)
    if found.dtype == torch.float8_e8m0fnu:
        return (found.view(torch.uint8).long() - expected.view(torch.uint8).long()).abs()
    if found.dtype == torch.uint8:
        low = (_e2m1_ordered(found & 0xF) - _e2m1_ordered(expected & 0xF)).abs()
        high = (_e2m1_ordered(found >> 4) - _e2m1_ordered(expected >> 4)).abs()
        return torch.where((low > 1) | (high > 1), BEYOND, torch.maximum(low, high))
    return (found != expected) * BEYOND


def _scales_apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """fp32: 0 within a few ulp, 1 for twice or half as much within a few ulp, BEYOND otherwise."""

    def near(values: torch.Tensor) -> torch.Tensor:
        return (_ordered(values) - _ordered(expected)).abs() <= _ULPS

    apart = torch.full(found.shape, BEYOND, dtype=torch.int64, device=found.device)
    apart[near(found / 2) | near(found * 2)] = 1
    apart[near(found)] = 0
    return apart


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """The codes of a floating-point type as int64 in the order of their values, 0 and -0 both 0."""
    signed = _SIGNED[values.dtype]
    bits = values.view(signed).long()
    return torch.where(bits < 0, torch.iinfo(signed).min - bits, bits)


def _e2m1_ordered(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 of e2m1 as int64 in the order of their values."""
    magnitude = (codes & 7).long()
    return torch.where(codes > 7, -magnitude, magnitude)
