"""What a comparison says of one figure of one row, and what that means for an exit code."""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS = {
    "incorrect": "bytes are wrong",
    "slow": "slower, beyond the gate and beyond chance",
    "worse": "a figure that repeats exactly got worse, or a row that worked no longer does",
    "unresolved": "what was measured cannot show a change of this size",
    "ambiguous": "more pairs would tell",
    "fast": "faster, beyond the gate and beyond chance",
    "better": "a figure that repeats exactly got better",
    "changed": "differs, for neither better nor worse",
    "same": "shown to be within the gate, or equal",
}
"""Every verdict, the gravest first."""
FAILING = ("incorrect", "slow", "worse")
"""Verdicts that make the exit code 1. An improvement never does, however large."""
UNSETTLED = ("unresolved", "ambiguous")


@dataclass(frozen=True)
class Judged:
    """One figure of one row in two runs.

    subject          the row in words
    metric           column of ``metrics.METRICS``, "status", or "code" for machine code
    before, now      the figure in both runs, in the metric's unit; None where it is none
    change, lo, hi   relative change and its interval, of times; infinite where there are too few processes
    gate             relative changes up to this were not looked for
    p_value          of no change
    processes        how many of each run a time rests on
    """

    subject: str
    metric: str
    verdict: str
    reason: str = ""
    before: float | None = None
    now: float | None = None
    change: float | None = None
    lo: float | None = None
    hi: float | None = None
    gate: float | None = None
    p_value: float | None = None
    processes: int | None = None
    row_id: str | None = None


@dataclass(frozen=True)
class Judgement:
    """What was judged, and the rows that only one of the runs has, in words."""

    judged: tuple[Judged, ...]
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
