"""The concepts of a run: a case to measure, one process's measurement of it, and the row that summarises them.

Pure data: no torch, no files. ``Case`` says what to run. A worker process answers it with one ``Measurement``: a
status, the correctness gate's findings and raw samples. ``summary.summarise`` turns the measurements of one case, one
from every process, into a ``Row``: the tidy record that tables, plots and comparisons read.

Units: ``us`` is microseconds, ``gbps`` is 1e9 bytes per second, bytes come from the format's layout.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from dsmla_bench.column_types import field_types, is_of

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

OWN_AXES = ("heads", "topk", "queries", "variant")
"""Axes that only some operations have."""

COMPARED_AXES = ("provider", "l2_state")
"""Axes that leave an operation's inputs as they are: rows that differ in these alone are held against each other."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: operation × format × provider × shape.

    tokens        rows written or gathered by one launch; requests of an operation that has ``queries``
    requests      requests that the tokens belong to (gather; 1 for write)
    block_size    tokens per cache page
    page_order    "ordered" or "shuffled" pages: how slots and block tables walk the cache
    l2_state      "cold" (nothing the launch touches is in L2) or "hot"

    Axes that only some operations have, None elsewhere:

    heads         query heads
    topk          cached rows that every query attends to
    queries       query tokens per request
    variant       which of an operation's ways of working is run
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
    heads: int | None = None
    topk: int | None = None
    queries: int | None = None
    variant: str | None = None

    @property
    def row_id(self) -> str:
        """A stable 16-digit key of the case: the same on every machine and in every version.

        Axes that the operation does not have are left out, so that a new one leaves old keys as they are.
        """
        axes = {name: value for name, value in vars(self).items() if value is not None}
        return hashlib.blake2b(json.dumps(axes, sort_keys=True).encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        what = f"{self.operation} {self.format}:{self.revision} {self.provider}"
        size = f"{self.tokens} {'tokens' if self.queries is None else 'requests'}"
        own = [f"{name} {value}" for name in OWN_AXES if (value := getattr(self, name)) is not None]
        return " ".join([what, size, f"{self.page_order} block {self.block_size}", *own])


def inputs_key(case: Case | Row) -> tuple[Any, ...]:
    """What cases share that have the same inputs and are compared with each other: all but provider and L2 state."""
    return tuple(getattr(case, axis.name) for axis in dataclasses.fields(Case) if axis.name not in COMPARED_AXES)


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
        """The measurement that ``to_json`` wrote. Raises ValueError when the line is not one: files are not trusted."""
        try:
            fields = json.loads(line)
            measurement = cls(**{**fields, "case": Case(**fields["case"])})
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not a measurement: {' '.join(str(error).split()):.200}") from error
        _require_types(measurement)
        return measurement


@dataclass(frozen=True)
class Row:
    """One case, summarised over its processes: a row of ``rows.parquet``. Undefined is None.

    us            median over processes of each process's median, headline method, µs
    us_lo, us_hi  smallest and largest process median (one process: its quartiles), µs
    us_check      the same figure by the other method, where it was measured, µs
    us_sum        the durations of the operation's kernels added up, where it launches several (method activity), µs
    us_min        smallest sample, µs
    samples, processes   how many samples and processes ``us`` rests on
    floor_us      an empty kernel timed by the same method in the same run
    quantum_us    smallest non-zero difference between raw samples: what the clock resolves
    copy_gbps     a copy kernel's bandwidth in the same run (bytes read + written)
    matmul_tflops the rate of a large bf16 matrix product in the same run, 1e12 operations per second
    bytes_read, bytes_written   what one launch must move, from the format's layout
    flops         floating-point operations of its matrix products; null where it has none
    gbps          (bytes_read + bytes_written) / us
    bound_us      max(floor_us, bytes / copy_gbps, flops / matmul_tflops): the fastest this machine allows
    bound_share   bound_us / us; null where the time is under twice the floor
    kcycles       us · sm_mhz / 1000: the time on the clock of the multiprocessors, which clock changes leave alone
    sm_mhz        the multiprocessor clock, the lowest read around the samples, median over processes
    throttle_reasons  why the device was slowed down while the row was timed
    peak_gbps     what the device's memory can move at most, by its clock and bus width
    binary_sha256 of the machine code that was run, or of the library that holds it
    suspect       the figure may be wrong; ``suspicion`` says why
    launch_bound  the time is under twice the floor: it says nothing about the kernel's speed
    first_call_us the first call, compilation included; never part of ``us``
    device        the GPU's name; ``device_uuid`` and ``device_index`` (on its machine) tell those of one model apart
    conversion    "native" (the target has the instruction), "emulated", or "none" needed
    bytes_compared, bytes_differing   the correctness gate: kernel against reference. Bytes of an ok row may differ
                  where the operation's order of additions is open, within its stated tolerance
    predicted_us  of a row that was not timed: its bytes at ``published_gbps``, the vendor's for ``published_part``

    What the compiler made of a row that was not timed. Instructions of the code are counted once each, however often
    they run, and the NOPs that pad it not at all:

    registers, stack_bytes   per thread; the stack is local memory, spilled registers included
    spilled_bytes            per thread: what instructions that spill registers write (ptxas's "spill stores")
    shared_bytes, num_warps  per program
    cubin_bytes              the compiled file, which also holds line tables
    occupancy                resident warps that these resources allow, in percent of what a multiprocessor can hold
    occupancy_limit          what allows no more: "registers", "shared memory", "warps" or "blocks"
    instructions             all of the following:
    global_loads_8 … _256, global_stores_8 … _256   by the bits that one thread moves with one of them
    local_loads, local_stores, shared_instructions, barriers, conversions, float_instructions, integer_instructions,
    other_instructions       ``bench.sass`` says what belongs to which
    bytes_per_global_instruction   bytes that one thread moves with all global loads and stores / their number
    native_fp8, native_fp4   whether the code holds a conversion instruction to or from e4m3, e2m1
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
    heads: int | None = None
    topk: int | None = None
    queries: int | None = None
    variant: str | None = None
    method: str | None = None
    us: float | None = None
    us_lo: float | None = None
    us_hi: float | None = None
    us_min: float | None = None
    us_check: float | None = None
    us_sum: float | None = None
    samples: int | None = None
    processes: int | None = None
    floor_us: float | None = None
    quantum_us: float | None = None
    copy_gbps: float | None = None
    matmul_tflops: float | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    flops: int | None = None
    gbps: float | None = None
    bound_us: float | None = None
    bound_share: float | None = None
    launch_bound: bool | None = None
    kcycles: float | None = None
    sm_mhz: float | None = None
    throttle_reasons: str | None = None
    peak_gbps: float | None = None
    binary_sha256: str | None = None
    suspect: bool | None = None
    suspicion: str | None = None
    first_call_us: float | None = None
    conversion: str | None = None
    bytes_compared: int | None = None
    bytes_differing: int | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int | None = None
    stack_bytes: int | None = None
    cubin_bytes: int | None = None
    num_warps: int | None = None
    occupancy: float | None = None
    occupancy_limit: str | None = None
    instructions: int | None = None
    global_loads_8: int | None = None
    global_loads_16: int | None = None
    global_loads_32: int | None = None
    global_loads_64: int | None = None
    global_loads_128: int | None = None
    global_loads_256: int | None = None
    global_stores_8: int | None = None
    global_stores_16: int | None = None
    global_stores_32: int | None = None
    global_stores_64: int | None = None
    global_stores_128: int | None = None
    global_stores_256: int | None = None
    bytes_per_global_instruction: float | None = None
    local_loads: int | None = None
    local_stores: int | None = None
    shared_instructions: int | None = None
    barriers: int | None = None
    conversions: int | None = None
    float_instructions: int | None = None
    integer_instructions: int | None = None
    other_instructions: int | None = None
    native_fp8: bool | None = None
    native_fp4: bool | None = None
    published_part: str | None = None
    published_gbps: float | None = None
    predicted_us: float | None = None
    seed: int | None = None
    device: str | None = None
    device_uuid: str | None = None
    device_index: int | None = None


ROW_FIELDS = tuple(field.name for field in dataclasses.fields(Row))


def _require_types(measurement: Measurement) -> None:
    """Raise ValueError where a measurement read from a file holds something of another type than it must."""
    types, case = field_types(Row), vars(measurement.case)
    wanted = {name: (value, types[name]) for name, value in case.items()}
    wanted |= {"process": (measurement.process, int), "reason": (measurement.reason, str)}
    for name, value in measurement.facts.items():
        if name in case or name in _SUMMARISED:
            raise ValueError(f"not a measurement: the facts hold {name}, which is no fact of a measurement")
        wanted[name] = (value, types.get(name, object))
    optional = {"reason", *OWN_AXES, *measurement.facts}
    for name, (value, kind) in wanted.items():
        if not (value is None and name in optional) and not is_of(value, kind):
            raise ValueError(f"not a measurement: {name} must be of type {kind.__name__}, found {value!r:.80}")
    for method, samples in measurement.samples.items():
        if not isinstance(samples, list) or not all(is_of(us, float) for us in samples):
            raise ValueError(f"not a measurement: the samples of {method} must be numbers")


_SUMMARISED = frozenset({"row_id", "status", "reason", "method", "us", "samples", "processes"})
"""Columns that only a summary may set."""
