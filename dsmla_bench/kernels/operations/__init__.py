"""The registry of operations: one file each, found by discovery."""

from __future__ import annotations

import functools
import sys

from dsmla_bench.kernels.discovery import discover, require_unique
from dsmla_bench.kernels.operations.base import PAGE_ORDERS, Operation, Outputs, Shape, Traffic

__all__ = ["PAGE_ORDERS", "Operation", "Outputs", "Shape", "Traffic", "all_operations", "get_operation"]

_ORDER = ("write", "gather", "fused_norm_rope", "fused_q", "decode")


@functools.cache
def all_operations() -> tuple[Operation, ...]:
    """Every known operation, ours first."""
    found = discover(sys.modules[__name__], "OPERATIONS", "dsmla_bench.operations", Operation)
    require_unique((operation.name for operation in found), "operation")
    return tuple(sorted(found, key=lambda op: (_ORDER.index(op.name) if op.name in _ORDER else len(_ORDER), op.name)))


def get_operation(name: str) -> Operation:
    """The operation called ``name``. Raises ValueError listing what exists."""
    for operation in all_operations():
        if operation.name == name:
            return operation
    raise ValueError(f"no operation {name!r}; available: {', '.join(op.name for op in all_operations())}")
