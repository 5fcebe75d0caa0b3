"""The axes of a sweep and the cases they span.

``Axes`` holds what the user asked for, one tuple per axis; ``expand`` spans the cases in the order in which a table
shows them. Cases that share their inputs (all but the provider equal) are neighbours, so that a worker makes inputs
once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from typing import Any

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat, Geometry, get_format
from dsmla_bench.kernels.operations import PAGE_ORDERS, Operation, Shape, get_operation
from dsmla_bench.kernels.providers import Provider
from dsmla_bench.rows import OWN_AXES, Case, inputs_key

MOST = 2**31 - 1
"""The largest number of tokens, requests or tokens per page: what kernels count in 32 bits."""
DEFAULT_REQUESTS = 8


@dataclass(frozen=True)
class Axes:
    """What a sweep covers: every combination of these. ``formats`` holds keys such as ``fp8_ds_mla:pow2``.

    Without a geometry (``kv_lora_rank`` and ``rope_dim``) every format is given the one that it stores, 512 + 64 where
    it stores any. Where None, ``tokens`` and ``page_orders`` are each operation's own, and so are ``heads``,
    ``topk``, ``queries`` and ``variant``, which operations without such an axis ignore.
    """

    operations: tuple[str, ...]
    formats: tuple[str, ...]
    providers: tuple[str, ...]
    tokens: tuple[int, ...] | None = None
    block_sizes: tuple[int, ...] = (64,)
    page_orders: tuple[str, ...] | None = None
    requests: int = DEFAULT_REQUESTS
    l2_states: tuple[str, ...] = ("cold",)
    kv_lora_rank: int | None = None
    rope_dim: int | None = None
    heads: tuple[int, ...] | None = None
    topk: tuple[int, ...] | None = None
    queries: tuple[int, ...] | None = None
    variant: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "block_sizes", "heads", "topk", "queries"):
            if not all(1 <= value <= MOST for value in getattr(self, name) or ()):
                raise ValueError(f"{name} must be from 1 to {MOST}, found {getattr(self, name)}")
        if not 1 <= self.requests <= MOST:
            raise ValueError(f"requests must be from 1 to {MOST}, found {self.requests}")
        for order in self.page_orders or ():
            if order not in PAGE_ORDERS:
                raise ValueError(f"page order {order!r} is none of {', '.join(PAGE_ORDERS)}")

    def as_dict(self) -> dict[str, Any]:
        """The axes as plain data, for the manifest."""
        return asdict(self)


def expand(axes: Axes, arch: Architecture) -> list[Case]:
    """Every case of the axes on one architecture. Raises ValueError for an unknown operation or format."""
    cases = []
    for operation, fmt in product(map(get_operation, axes.operations), map(get_format, axes.formats)):
        if operation.covers(fmt):
            for shape, provider in product(list(_shapes(axes, operation)), axes.providers):
                geometry = fmt.geometry or Geometry()
                cases.append(
                    Case(
                        operation=operation.name,
                        format=fmt.name,
                        revision=fmt.revision,
                        provider=provider,
                        arch=arch.name,
                        kv_lora_rank=geometry.kv_lora_rank if axes.kv_lora_rank is None else axes.kv_lora_rank,
                        rope_dim=geometry.rope_dim if axes.rope_dim is None else axes.rope_dim,
                        **shape,
                    )
                )
    return cases


def _shapes(axes: Axes, operation: Operation) -> Iterator[dict[str, Any]]:
    """The axes of ``Case`` that make up a shape, for every shape of an operation."""
    spanned: dict[str, Sequence[Any]] = {
        "block_size": axes.block_sizes if operation.uses_pages else axes.block_sizes[:1],
        "page_order": (axes.page_orders or operation.page_orders) if operation.uses_pages else PAGE_ORDERS[:1],
        **{name: getattr(axes, name) or values for name, values in operation.axes.items()},
        **_variants(axes, operation),
        "tokens": axes.tokens or operation.tokens,
        "l2_state": axes.l2_states,
    }
    for values in product(*spanned.values()):
        shape = dict(zip(spanned, values, strict=True))
        yield {**shape, "requests": min(axes.requests, shape["tokens"]) if operation.uses_requests else 1}


def _variants(axes: Axes, operation: Operation) -> dict[str, Sequence[str]]:
    """The variants asked for that an operation has; nothing where none is asked for or it has no such axis."""
    if axes.variant is None or not operation.variants:
        return {}
    return {"variant": [name for name in operation.variants if name in axes.variant]}


def shape_of(case: Case) -> Shape:
    """The shape that an operation makes inputs for."""
    return Shape(
        case.tokens,
        case.requests,
        case.block_size,
        case.page_order == "shuffled",
        Geometry(case.kv_lora_rank, case.rope_dim),
        **{name: getattr(case, name) for name in OWN_AXES},
    )


def operation_of(case: Case) -> Operation:
    """The operation of a case."""
    return get_operation(case.operation)


def shuffled(cases: Sequence[Case], seed: int) -> list[Case]:
    """The cases in random order, those that share their inputs kept together, reproducible from ``seed``."""
    groups = [list(group) for _, group in groupby(cases, key=inputs_key)]
    generator = random.Random(seed)
    generator.shuffle(groups)
    for group in groups:
        generator.shuffle(group)
    return [case for group in groups for case in group]


def by_kernel(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases in groups that differ in their shape only, and so often share a kernel, as they begin."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.operation, case.format, case.revision, case.provider, case.arch), []).append(case)
    return list(groups.values())


def format_of(case: Case) -> CacheFormat:
    """The format of a case, in its revision."""
    return get_format(f"{case.format}:{case.revision}")


def why_not(provider: Provider, case: Case) -> str | None:
    """Why the case cannot be run at all, in one sentence: its geometry, or the provider's reason. None when it can."""
    fmt, shape = format_of(case), shape_of(case)
    try:
        fmt.require(shape.geometry)
    except ValueError as error:
        return str(error)
    return provider.why_not(operation_of(case), fmt, Architecture.parse(case.arch), shape)


def traffic_facts(provider: Provider, case: Case, arch: Architecture) -> dict[str, Any]:
    """Columns of a row that follow from the case alone: bytes moved, and how the provider converts on ``arch``."""
    operation, fmt = operation_of(case), format_of(case)
    traffic = operation.traffic(fmt, shape_of(case))
    return {
        "bytes_read": traffic.bytes_read,
        "bytes_written": traffic.bytes_written,
        "flops": traffic.flops or None,
        "conversion": provider.conversion(operation, fmt, arch),
    }
