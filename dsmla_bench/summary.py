"""From measurements to rows: pure arithmetic, the same for a finished run and for one that was cut short.

A row's time is the median over processes of each process's median, by the headline method: the first that was measured.
Processes are what varies (addresses, the mapping of programs to multiprocessors); samples within one are not
independent. ``us_lo`` and ``us_hi`` are the smallest and largest process median, which for five processes is a 94 %
confidence interval of the median (two in 2^5 fall outside), for three a 75 % one.

A figure that is known to be wrong is no figure: a time that the clock does not resolve makes the row ``unresolved``.
One that may be wrong keeps its number and is ``suspect``, with the reason in ``suspicion``:

* the two methods disagree by more than 5 % and more than the floor;
* the launch seems to move more bytes than the device's memory can, from a cold L2;
* it is under the floor, by more than measuring the floor can explain;
* the multiprocessors ran at a clock more than 3 % off the median row of the run on that device;
* its measurements come from different devices or binaries;
* most rows that it is compared with were measured on another device;
* another process was on the device while it was measured.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dsmla_bench.rows import ROW_FIELDS, Measurement, Row, inputs_key

DISAGREEMENT = 0.05
CLOCK_DRIFT = 0.03
MACHINE = ("floor_us", "quantum_us", "copy_gbps", "matmul_tflops", "sm_mhz")
"""What the measurements of a row say of the machine; a row has the median of each."""


def summarise_all(measurements: Sequence[Measurement]) -> list[Row]:
    """One row per case, in the order in which cases were first measured, flagged where the others show what is odd."""
    by_case: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        by_case.setdefault(measurement.case.row_id, []).append(measurement)
    return flag_split_comparisons(flag_clock_drift([summarise(group) for group in by_case.values()]))


def summarise(measurements: Sequence[Measurement], method: str | None = None) -> Row:
    """The row of one case from its measurements, one per process; ``method`` is the first one measured by default.

    A status other than ok in any process becomes the row's status: the first by process. Raises ValueError when the
    measurements are of different cases or there is none.
    """
    if not measurements:
        raise ValueError("no measurement to summarise")
    case = measurements[0].case
    if any(m.case != case for m in measurements):
        raise ValueError("measurements of different cases cannot be summarised together")
    if len({m.process for m in measurements}) < len(measurements):
        raise ValueError(f"{case}: one process measured it twice; a row rests on one measurement per process")
    bad = min((m for m in measurements if m.status != "ok"), key=lambda m: m.process, default=None)
    first = bad or measurements[0]
    facts = {name: value for name, value in first.facts.items() if name in ROW_FIELDS}
    row = Row(row_id=case.row_id, **dataclasses.asdict(case), status=first.status, reason=first.reason, **facts)
    if bad is not None:
        return row
    method = method or next(iter(first.samples), "graph")
    per_process = [m.samples[method] for m in measurements if m.samples.get(method)]
    if not per_process:
        found = ", ".join(sorted({name for m in measurements for name in m.samples})) or "nothing"
        reason = f"no sample by method {method!r} (measured: {found})"
        return dataclasses.replace(row, status="unresolved", reason=reason)
    us, quantum_us = statistics.median(map(statistics.median, per_process)), _median_fact(measurements, "quantum_us")
    if us <= (quantum_us or 0.0):
        resolved = "" if not quantum_us else f", and the clock resolves {quantum_us:.3g} µs"
        reason = f"below the clock's resolution: the median time is {us:.3g} µs{resolved}"
        return dataclasses.replace(row, status="unresolved", reason=reason, method=method, quantum_us=quantum_us)
    known = [*_mixed(measurements), *_shared(measurements)]
    return with_suspicion(dataclasses.replace(row, **_timing(measurements, method, row)), known)


def _mixed(measurements: Sequence[Measurement]) -> list[str]:
    """What the measurements of one row do not agree on, in words."""
    return [
        f"measured with {len(values)} different values of {name}"
        for name in ("device", "device_uuid", "binary_sha256", "seed")
        if len(values := {m.facts.get(name) for m in measurements}) > 1
    ]


def _shared(measurements: Sequence[Measurement]) -> list[str]:
    """In words, in how many of the processes that measured a row there were others on the device."""
    others = [m.facts.get("other_processes") for m in measurements]
    shared = sum(isinstance(count, int) and count > 0 for count in others)
    return [f"other processes were on the device in {shared} of {len(others)} measurements"] if shared else []


def with_suspicion(row: Row, known: Sequence[str] = ()) -> Row:
    """The row with ``suspect`` and ``suspicion`` settled from its own figures and what is ``known`` of it already."""
    found = list(known)
    if row.us is not None and row.us_check is not None:
        allowed = max(DISAGREEMENT * row.us, row.floor_us or 0.0)
        if abs(row.us - row.us_check) > allowed:
            found.append(f"the second method gives {row.us_check:.3g} µs")
    if row.l2_state == "cold" and row.gbps is not None and row.peak_gbps is not None and row.gbps > row.peak_gbps:
        found.append(f"{row.gbps:.0f} GB/s is more than the memory's peak of {row.peak_gbps:.0f}")
    if row.l2_state == "cold" and row.bound_share is not None and row.bound_share > 1 + DISAGREEMENT:
        found.append(f"the floor of this machine is {row.bound_us:.3g} µs")
    return dataclasses.replace(row, suspect=bool(found), suspicion="; ".join(found) or None)


def flag_clock_drift(rows: Sequence[Row]) -> list[Row]:
    """The rows, with those suspect whose clock was more than 3 % off the median row of the run on that device."""
    clocks: dict[tuple[str | None, ...], list[float]] = {}
    for row in rows:
        if row.sm_mhz is not None:
            clocks.setdefault(_device_of(row), []).append(row.sm_mhz)
    usual = {device: statistics.median(values) for device, values in clocks.items()}
    return [_with_drift(row, usual.get(_device_of(row))) for row in rows]


def _device_of(row: Row) -> tuple[str | None, ...]:
    """What tells devices apart: rows of old runs have no uuid."""
    return row.arch, row.device, row.device_uuid


def _with_drift(row: Row, usual_mhz: float | None) -> Row:
    if row.status != "ok" or row.sm_mhz is None or usual_mhz is None:
        return row
    if abs(row.sm_mhz - usual_mhz) <= CLOCK_DRIFT * usual_mhz:
        return row
    return _with_suspicion_of(row, f"the clock was {row.sm_mhz:.0f} MHz, in the run's median row {usual_mhz:.0f}")


def flag_split_comparisons(rows: Sequence[Row]) -> list[Row]:
    """The rows, with those suspect that were timed on another device than most of those with the same inputs.

    Cards of one model differ by a percent or two, which would look like a provider's merit. Of as many rows on either
    device those are kept that came first.
    """
    devices: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        if row.status == "ok" and row.device_uuid is not None:
            devices.setdefault(inputs_key(row), Counter())[row.device_uuid] += 1
    usual = {key: counted.most_common(1)[0][0] for key, counted in devices.items()}
    return [_with_split(row, usual.get(inputs_key(row))) for row in rows]


def _with_split(row: Row, usual_uuid: str | None) -> Row:
    if row.status != "ok" or row.device_uuid in (None, usual_uuid):
        return row
    return _with_suspicion_of(row, "measured on another device than the rows that it is compared with")


def _with_suspicion_of(row: Row, reason: str) -> Row:
    """The row, suspect for one reason more."""
    return dataclasses.replace(row, suspect=True, suspicion="; ".join(filter(None, [row.suspicion, reason])))


def _timing(measurements: Sequence[Measurement], method: str, row: Row) -> dict[str, Any]:
    """The columns of ``Row`` that come from samples; there are some by ``method``, and their median is positive."""
    per_process = [m.samples[method] for m in measurements if m.samples.get(method)]
    medians = [statistics.median(samples) for samples in per_process]
    us = statistics.median(medians)
    pooled = sorted(sample for samples in per_process for sample in samples)
    spread = medians if len(medians) > 1 else _quartiles(pooled)
    machine = {name: _median_fact(measurements, name) for name in MACHINE}
    floor_us, sm_mhz = machine["floor_us"], machine["sm_mhz"]
    moved = (row.bytes_read or 0) + (row.bytes_written or 0)
    launch_bound = us < 2 * floor_us if floor_us is not None else None
    bound_us = _bound_us(row, machine)
    others = [statistics.median(s) for m in measurements for name, s in m.samples.items() if name != method and s]
    return {
        "method": method,
        "us": us,
        "us_lo": min(spread),
        "us_hi": max(spread),
        "us_min": pooled[0],
        "us_check": statistics.median(others) if others else None,
        "us_sum": _median_fact(measurements, "us_sum"),
        "samples": len(pooled),
        "processes": len(per_process),
        **machine,
        "kcycles": us * sm_mhz / 1e3 if sm_mhz is not None else None,
        "gbps": moved / us / 1e3 if moved else None,
        "bound_us": bound_us,
        "bound_share": bound_us / us if bound_us is not None and not launch_bound else None,
        "launch_bound": launch_bound,
    }


def _bound_us(row: Row, machine: dict[str, float | None]) -> float | None:
    """The fastest that the machine allows, µs; None where something that decides it is not known."""
    floor_us, copy_gbps, matmul_tflops = (machine[name] for name in ("floor_us", "copy_gbps", "matmul_tflops"))
    if row.bytes_read is None or row.bytes_written is None or floor_us is None or not copy_gbps:
        return None
    memory_us = (row.bytes_read + row.bytes_written) / copy_gbps / 1e3
    if not row.flops:
        return max(floor_us, memory_us)
    return max(floor_us, memory_us, row.flops / matmul_tflops / 1e6) if matmul_tflops else None


def _quartiles(ordered: list[float]) -> list[float]:
    """The quartiles around the median, never outside the samples."""
    return statistics.quantiles(ordered, n=4, method="inclusive")[::2] if len(ordered) > 1 else ordered


def _median_fact(measurements: Sequence[Measurement], name: str) -> float | None:
    values = [m.facts[name] for m in measurements if m.facts.get(name) is not None]
    return statistics.median(values) if values else None
