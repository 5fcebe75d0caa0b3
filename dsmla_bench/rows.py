"""The concepts of a run: a case to measure, one process's measurement of it, and the row that summarises them.

Pure data and pure arithmetic: no torch, no files. ``Case`` says what to run. A worker process answers it with one
``Measurement``: a status, the correctness gate's findings and raw samples. ``summarise`` turns the measurements of one
case, one from every process, into a ``Row``: the tidy record that tables, plots and comparisons read.

Units: ``us`` is microseconds, ``gbps`` is 1e9 bytes per second, bytes come from the format's layout.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import typing
from dataclasses import dataclass, field
from typing import Any

STATUSES = (
    "ok",
    "skipped",
    "compiled",
    "incorrect",
    "unresolved",
    "throttled",
    "oom",
    "timeout",
    "compile_error",
    "runtime_error",
)
"""Every status but ``ok`` comes with a reason. ``compiled``: checked and cross-compiled, but not timed (no device)."""

FINDINGS = frozenset({"incorrect", "throttled", "oom", "timeout", "compile_error", "runtime_error"})
"""Statuses that make a sweep exit with 1."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: operation × format × provider × shape.

    tokens        rows written or gathered by one launch
    requests      requests that the tokens belong to (gather; 1 for write)
    block_size    tokens per cache page
    page_order    "ordered" or "shuffled" pages: how slots and block tables walk the cache
    l2_state      "cold" (nothing the launch touches is in L2) or "hot"
    """

    operation: str
    format: str
    revision: str
    provider: str
    arch: str
    tokens: int
    requests: int
    block_size: int
    page_order: str
    l2_state: str = "cold"
    kv_lora_rank: int = 512
    rope_dim: int = 64
    data: str = "normal"

    @property
    def row_id(self) -> str:
        """A stable 16-digit key of the case: the same on every machine and in every version."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        return (
            f"{self.operation} {self.format}:{self.revision} {self.provider} {self.tokens} tokens "
            f"{self.page_order} block {self.block_size}"
        )


@dataclass(frozen=True)
class Measurement:
    """What one process found for one case. ``samples`` maps a method to raw times in µs, in the order measured."""

    case: Case
    process: int
    status: str
    reason: str | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Columns of ``Row`` that do not come from samples: bytes, gate findings, floor, compiler facts, …"""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"a measurement with status {self.status!r} needs a reason")
        numbers = [*self.facts.items(), *((name, us) for name, times in self.samples.items() for us in times)]
        for name, value in numbers:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is {value}; a measurement holds finite numbers only, and None for undefined")

    def to_json(self) -> str:
        """One line of JSON, read back by ``from_json``."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Measurement:
        """The measurement that ``to_json`` wrote. Raises ValueError when the line is not one."""
        try:
            fields = json.loads(line)
            return cls(**{**fields, "case": Case(**fields["case"])})
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"not a measurement: {error}") from error


@dataclass(frozen=True)
class Row:
    """One case, summarised over its processes: a row of ``rows.parquet``. Undefined is None.

    us            median over processes of each process's median, headline method, µs
    us_lo, us_hi  smallest and largest process median (one process: its quartiles), µs
    us_check      the same figure by the other method, where it was measured, µs
    us_min        smallest sample, µs
    samples, processes   how many samples and processes ``us`` rests on
    floor_us      an empty kernel timed by the same method in the same run
    quantum_us    smallest non-zero difference between raw samples: what the clock resolves
    copy_gbps     a copy kernel's bandwidth in the same run (bytes read + written)
    bytes_read, bytes_written   what one launch must move, from the format's layout
    gbps          (bytes_read + bytes_written) / us
    bound_us      max(floor_us, bytes / copy_gbps): the fastest this machine allows
    bound_share   bound_us / us; null where the time is under twice the floor
    launch_bound  the time is under twice the floor: it says nothing about the kernel's speed
    first_call_us the first call, compilation included; never part of ``us``
    conversion    "native" (the target has the instruction), "emulated", or "none" needed
    bytes_compared, bytes_differing   the correctness gate: kernel against reference
    registers, spilled_bytes, shared_bytes, predicted_us   compiler facts of a row that was not timed;
                  predicted_us from ``published_gbps``, the vendor's figure for the architecture
    """

    row_id: str
    operation: str
    format: str
    revision: str
    provider: str
    arch: str
    tokens: int
    requests: int
    block_size: int
    page_order: str
    l2_state: str
    kv_lora_rank: int
    rope_dim: int
    data: str
    status: str
    reason: str | None = None
    method: str | None = None
    us: float | None = None
    us_lo: float | None = None
    us_hi: float | None = None
    us_min: float | None = None
    us_check: float | None = None
    samples: int | None = None
    processes: int | None = None
    floor_us: float | None = None
    quantum_us: float | None = None
    copy_gbps: float | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    gbps: float | None = None
    bound_us: float | None = None
    bound_share: float | None = None
    launch_bound: bool | None = None
    first_call_us: float | None = None
    conversion: str | None = None
    bytes_compared: int | None = None
    bytes_differing: int | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int | None = None
    published_gbps: float | None = None
    predicted_us: float | None = None
    seed: int | None = None
    device: str | None = None


ROW_FIELDS = tuple(field.name for field in dataclasses.fields(Row))


def row_types() -> dict[str, type]:
    """Column name → Python type (int, float, bool or str) of every column of ``Row``, None left out."""
    return {name: (typing.get_args(hint) or (hint,))[0] for name, hint in typing.get_type_hints(Row).items()}


def summarise(measurements: list[Measurement], method: str = "graph") -> Row:
    """The row of one case from its measurements, one per process.

    A status other than ok in any process becomes the row's status: the first by process. A time of 0 µs or no sample by
    ``method`` is ``unresolved``, never a number. Raises ValueError when the measurements are of different cases or
    there is none.
    """
    if not measurements:
        raise ValueError("no measurement to summarise")
    case = measurements[0].case
    if any(m.case != case for m in measurements):
        raise ValueError("measurements of different cases cannot be summarised together")
    bad = min((m for m in measurements if m.status != "ok"), key=lambda m: m.process, default=None)
    first = bad or measurements[0]
    facts = {name: value for name, value in first.facts.items() if name in ROW_FIELDS}
    row = Row(row_id=case.row_id, **dataclasses.asdict(case), status=first.status, reason=first.reason, **facts)
    if bad is not None:
        return row
    per_process = [m.samples[method] for m in measurements if m.samples.get(method)]
    if not per_process:
        found = ", ".join(sorted({name for m in measurements for name in m.samples})) or "nothing"
        reason = f"no sample by method {method!r} (measured: {found})"
        return dataclasses.replace(row, status="unresolved", reason=reason)
    if statistics.median(map(statistics.median, per_process)) <= 0:
        reason = "below the clock's resolution: the median time is 0 µs"
        return dataclasses.replace(row, status="unresolved", reason=reason, method=method)
    return dataclasses.replace(row, **_timing(measurements, method, row))


def _timing(measurements: list[Measurement], method: str, row: Row) -> dict[str, Any]:
    """The columns of ``Row`` that come from samples; there are some by ``method``, and their median is positive."""
    per_process = [m.samples[method] for m in measurements if m.samples.get(method)]
    medians = [statistics.median(samples) for samples in per_process]
    us = statistics.median(medians)
    pooled = sorted(sample for samples in per_process for sample in samples)
    spread = medians if len(medians) > 1 else _quartiles(pooled)
    floor_us = _median_fact(measurements, "floor_us")
    copy_gbps = _median_fact(measurements, "copy_gbps")
    known = row.bytes_read is not None and row.bytes_written is not None
    moved = (row.bytes_read or 0) + (row.bytes_written or 0)
    launch_bound = us < 2 * floor_us if floor_us is not None else None
    bound_us = max(floor_us, moved / copy_gbps / 1e3) if floor_us is not None and copy_gbps and known else None
    others = [statistics.median(s) for m in measurements for name, s in m.samples.items() if name != method and s]
    return {
        "method": method,
        "us": us,
        "us_lo": min(spread),
        "us_hi": max(spread),
        "us_min": pooled[0],
        "us_check": statistics.median(others) if others else None,
        "samples": len(pooled),
        "processes": len(per_process),
        "floor_us": floor_us,
        "quantum_us": _median_fact(measurements, "quantum_us"),
        "copy_gbps": copy_gbps,
        "gbps": moved / us / 1e3 if moved else None,
        "bound_us": bound_us,
        "bound_share": bound_us / us if bound_us is not None and not launch_bound else None,
        "launch_bound": launch_bound,
    }


def _quartiles(ordered: list[float]) -> list[float]:
    """The quartiles around the median, never outside the samples."""
    return statistics.quantiles(ordered, n=4, method="inclusive")[::2] if len(ordered) > 1 else ordered


def _median_fact(measurements: list[Measurement], name: str) -> float | None:
    values = [m.facts[name] for m in measurements if m.facts.get(name) is not None]
    return statistics.median(values) if values else None
