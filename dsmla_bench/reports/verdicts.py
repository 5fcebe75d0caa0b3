"""Is a row slower than it was? The rule that turns process medians of two runs into a verdict. It never prints.

    slow, fast   the interval of the shift leaves out 0, the shift is beyond the gate, and it survives the table
    same         the 95 % interval lies within the gate: no change is shown, not assumed
    unresolved   what was measured cannot show a change of the size looked for
    ambiguous    none of these; more pairs would tell

The shift is a difference of logarithms, so it is a factor. Runs measured in pairs (``dsmla-bench ab``) are compared
pair by pair, which cancels what both processes of a pair share: temperature, clock, memory. Others are compared as
groups, with a wider gate, because two sessions differ by about a percent without a change. Processes, not samples, are
the observations: samples within a process repeat one bias.

The gate is the largest of what is wanted (2 %, unpaired 5 %), twice the clock's quantum, and the row's own noise: how
far apart runs of the same code may be found, from neighbouring processes of each run. Where it comes out above twice
of what is wanted, and for launch-bound rows, small changes are not guessed at: such a row is ``unresolved`` unless it
changed by more than that. When the clocks of the two runs differ by more than 1 % a verdict must hold in cycles too.

A table has many rows: ``control_false_discoveries`` keeps the share of false ones among slow and fast rows at 5 %
within each kernel's family of rows. ``tests/test_verdict_study.py`` shows what all this finds and what it misses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from dsmla_bench.reports.statistics import Floats, Shift, adjusted_p_values, paired_shift, unpaired_shift

WANTED_GATE, WANTED_GATE_UNPAIRED = 0.02, 0.05
FIRST_LOOK, SECOND_LOOK, EQUIVALENCE = 0.99, 0.995, 0.95
"""Confidence of slow and fast, of the same when more pairs were added after a first look, and of same."""
CLOCK_TOLERANCE = 0.01
FALSE_DISCOVERY_RATE = 0.05
NOISE_QUANTILE = 4.5
"""Standard errors beyond which none of 60 unchanged rows lies in 99 of 100 tables. By the normal distribution that is
3.6, but a standard error from two dozen processes is itself uncertain; the study checks it."""


@dataclass(frozen=True)
class Evidence:
    """What two runs measured of one row: one median per process, µs, in the order of processes.

    before, now               float64 [R] each; ``paired``: entry r of both is pair r
    before_mhz, now_mhz       the multiprocessors' clock beside each, or () where it is unknown
    quantum_us, floor_us      what the clock resolves, and an empty kernel, 0 where they are unknown
    confidence                of slow and fast: FIRST_LOOK or SECOND_LOOK
    """

    before: Sequence[float]
    now: Sequence[float]
    paired: bool
    before_mhz: Sequence[float] = ()
    now_mhz: Sequence[float] = ()
    quantum_us: float = 0.0
    floor_us: float = 0.0
    confidence: float = FIRST_LOOK


@dataclass(frozen=True)
class Verdict:
    """What is said of a row's time, and on what grounds. All figures are relative: 0.03 is 3 % slower.

    change, lo, hi   Hodges–Lehmann estimate and its interval, infinite where there are too few processes for one
    gate             changes up to this are not looked for
    p_value          of no change
    """

    verdict: str
    reason: str
    change: float
    lo: float
    hi: float
    gate: float
    p_value: float


def judge(evidence: Evidence) -> Verdict:
    """The verdict on one row, before the rest of the table is looked at. Raises ValueError for no process."""
    found = _judge_times(evidence)
    clocks = [float(np.median(mhz)) for mhz in (evidence.before_mhz, evidence.now_mhz) if len(mhz)]
    if len(clocks) < 2 or abs(clocks[1] - clocks[0]) <= CLOCK_TOLERANCE * clocks[0]:
        return found
    in_cycles = _judge_times(_in_cycles(evidence))
    if in_cycles.verdict == found.verdict:
        return found
    reason = (
        f"the clock was {clocks[0]:.0f} and {clocks[1]:.0f} MHz: {found.verdict} in time ({found.change:+.1%}) but "
        f"{in_cycles.verdict} in cycles ({in_cycles.change:+.1%})"
    )
    return dataclasses.replace(found, verdict="unresolved", reason=reason)


def control_false_discoveries(verdicts: Sequence[Verdict], families: Sequence[Hashable]) -> list[Verdict]:
    """The verdicts with slow and fast rows made ambiguous that chance alone may explain among so many rows.

    ``families`` names the kernel that each row belongs to.
    """
    members: dict[Hashable, list[int]] = {}
    for number, family in enumerate(families):
        members.setdefault(family, []).append(number)
    controlled = list(verdicts)
    for numbers in members.values():
        rates = adjusted_p_values([verdicts[number].p_value for number in numbers])
        for number, rate in zip(numbers, rates, strict=True):
            if verdicts[number].verdict in ("slow", "fast") and rate > FALSE_DISCOVERY_RATE:
                reason = f"among {len(numbers)} rows of this kernel chance may explain it; add pairs"
                controlled[number] = dataclasses.replace(verdicts[number], verdict="ambiguous", reason=reason)
    return controlled


def _judge_times(evidence: Evidence) -> Verdict:
    before, now = (np.log(np.asarray(times, dtype=np.float64)) for times in (evidence.before, evidence.now))
    shift = paired_shift(now - before) if evidence.paired else unpaired_shift(before, now)
    gate, coarse = _gate(evidence, before, now)
    lo, hi = shift.interval(evidence.confidence)
    verdict, reason = _decide(shift, gate, coarse, lo, hi)
    change, lo, hi = (math.expm1(log) if math.isfinite(log) else log for log in (shift.estimate, lo, hi))
    return Verdict(verdict, reason, change, lo, hi, gate, shift.p_value)


def _decide(shift: Shift, gate: float, coarse: str, lo: float, hi: float) -> tuple[str, str]:
    """Verdict and reason; ``coarse`` says why small changes cannot be seen, "" where they can."""
    limit = math.log1p(gate)
    if lo > 0 and shift.estimate > limit:
        return "slow", ""
    if hi < 0 and shift.estimate < -limit:
        return "fast", ""
    if coarse:
        return "unresolved", coarse
    inner_lo, inner_hi = shift.interval(EQUIVALENCE)
    if -limit < inner_lo and inner_hi < limit:
        return "same", ""
    if not math.isfinite(lo):
        return "ambiguous", "too few processes for any verdict"
    return "ambiguous", "the interval is too wide to tell; add pairs"


def _gate(evidence: Evidence, before: Floats, now: Floats) -> tuple[float, str]:
    """The gate, and why it is too coarse for the changes looked for, "" where it is not."""
    wanted = WANTED_GATE if evidence.paired else WANTED_GATE_UNPAIRED
    us = float(min(np.median(evidence.before), np.median(evidence.now)))
    quantum, noise = 2 * evidence.quantum_us / us, own_noise(before, now)
    gate = max(wanted, quantum, noise)
    if quantum > 2 * wanted:
        return gate, f"the clock resolves {evidence.quantum_us:.3g} µs, which hides changes under {quantum:.1%}"
    if noise > 2 * wanted:
        return gate, f"processes of the same code differ so much that changes under {noise:.1%} are hidden"
    if us < 2 * evidence.floor_us:
        return max(gate, 2 * wanted), f"launch-bound: an empty kernel takes {evidence.floor_us:.3g} of {us:.3g} µs"
    return gate, ""


def own_noise(before: Floats, now: Floats) -> float:
    """How far apart two runs of one code may be found: the row's own A/A noise, relative (see NOISE_QUANTILE).

    ``before`` and ``now`` are logarithms of process medians. Neighbouring processes of one run ran the same code at
    about the same time, so their differences hold noise and nothing else.
    """
    differences = np.concatenate([np.diff(before), np.diff(now)])
    if differences.size == 0:
        return 0.0
    processes = min(before.size, now.size)
    return math.expm1(NOISE_QUANTILE * float(np.sqrt(np.mean(differences**2))) / math.sqrt(processes))


def _in_cycles(evidence: Evidence) -> Evidence:
    """The same evidence by the multiprocessors' clock: kilocycles per launch in place of µs."""
    ghz = float(np.median(evidence.now_mhz)) / 1e3
    return dataclasses.replace(
        evidence,
        before=[us * mhz / 1e3 for us, mhz in zip(evidence.before, evidence.before_mhz, strict=True)],
        now=[us * mhz / 1e3 for us, mhz in zip(evidence.now, evidence.now_mhz, strict=True)],
        quantum_us=evidence.quantum_us * ghz,
        floor_us=evidence.floor_us * ghz,
    )
