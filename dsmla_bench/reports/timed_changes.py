"""Two kernel runs, row by row: times by ``verdicts``, statuses and bytes exactly. Pure judgement over runs.

A row is a case. Cases are matched by their axes, absent ones included, never by joining tables; an axis in which the
runs are known to be unlike (``ignored``) is left out.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dsmla_bench.reports.judged import Judged, Judgement
from dsmla_bench.reports.kernel_frame import unit_of
from dsmla_bench.reports.metrics import METRICS, compare_exactly
from dsmla_bench.reports.verdicts import FIRST_LOOK, SECOND_LOOK, Evidence, Verdict, control_false_discoveries, judge
from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Measurement, Row

Key = tuple[Any, ...]
FAMILY = ("operation", "format", "revision", "provider", "arch")
"""The axes that name a kernel; its rows are one family of tests."""
UNNAMED = {"operation", "format", "revision", "provider", "tokens", "requests", "kv_lora_rank", "rope_dim", "data"}
"""Axes that a list of rows does not spell out, or names in front."""
EXACT = ("bytes_read", "bytes_written")
NO_PAIR = "the runs were measured in turns, but no process of one has its counterpart in the other"
NOT_TIMED = ("throttled", "unresolved")
"""Statuses that leave open whether a row got slower."""


@dataclass(frozen=True)
class TimedRow:
    """A row of one run with the case and the measurements behind it."""

    case: Case
    row: Row
    measurements: tuple[Measurement, ...]

    def medians(self, method: str) -> dict[int, float]:
        """Process → its median by this method, µs."""
        return {m.process: statistics.median(m.samples[method]) for m in self.measurements if m.samples.get(method)}

    def clocks(self) -> dict[int, float]:
        """Process → the multiprocessors' clock beside its samples, MHz."""
        known = {m.process: m.facts.get("sm_mhz") for m in self.measurements}
        return {process: mhz for process, mhz in known.items() if mhz is not None}


def judge_rows(before: Run, now: Run, ignored: Collection[str] = ()) -> Judgement:
    """Every row that both runs have; ``ignored`` axes need not agree.

    Raises ValueError where rows cannot be told apart without those axes.
    """
    old, new = _by_key(before, ignored), _by_key(now, ignored)
    pairs = [(old[key], row) for key, row in new.items() if key in old]
    judged = [found for then, row in pairs if (found := _status(then, row)) is not None]
    judged += [found for then, row in pairs if _both_ok(then, row) for found in _exact(then, row)]
    timed = [(then, row) for then, row in pairs if _both_ok(then, row)]
    judged += _times(timed, are_paired(before, now), _first_look(before, now))
    return Judgement(
        tuple(judged),
        missing=tuple(_summed_up(row.case for key, row in old.items() if key not in new and _worked(row))),
        added=tuple(_summed_up(row.case for key, row in new.items() if key not in old and _worked(row))),
    )


def are_paired(before: Run, now: Run) -> bool:
    """Whether the runs were measured in turns, process by process."""
    pairing = before.manifest.get("paired")
    return pairing is not None and pairing == now.manifest.get("paired")


def subject(case: Case) -> str:
    """A case in words."""
    return f"{case} L2 hot" if case.l2_state == "hot" else str(case)


def _first_look(before: Run, now: Run) -> int | None:
    """The processes that were planned; a row with more was looked at before. None where that is not known."""
    configs = [run.manifest.get("config") or {} for run in (before, now)]
    planned = [config["processes"] for config in configs if isinstance(config.get("processes"), int)]
    return max(planned, default=None)


def _by_key(run: Run, ignored: Collection[str]) -> dict[Key, TimedRow]:
    grouped: dict[Case, list[Measurement]] = {}
    for measurement in run.measurements:
        grouped.setdefault(measurement.case, []).append(measurement)
    found: dict[Key, TimedRow] = {}
    for (case, measurements), row in zip(grouped.items(), run.summaries(), strict=True):
        key = tuple(value for name, value in vars(case).items() if name not in ignored)
        if key in found:
            raise ValueError(f"{run.path}: two rows are the same but for {', '.join(ignored)}; compare narrower runs")
        found[key] = TimedRow(case, row, tuple(measurements))
    return found


def _both_ok(then: TimedRow, now: TimedRow) -> bool:
    return then.row.status == now.row.status == "ok"


def _worked(row: TimedRow) -> bool:
    """Compiled rows are compared by kernel, and what was skipped is not missed."""
    return row.row.status not in ("compiled", "skipped")


def _status(then: TimedRow, now: TimedRow) -> Judged | None:
    """What the statuses alone say; None where there is nothing to say, or figures will."""
    before, after = then.row.status, now.row.status
    reason = f"{before} → {after}" + (f": {now.row.reason}" if now.row.reason else "")
    if after == "incorrect":
        verdict = "incorrect"
    elif before == after or "compiled" in (before, after):
        return None
    elif after in NOT_TIMED or before in NOT_TIMED:
        verdict = "unresolved"
    elif before == "ok":
        verdict = "worse"
    else:
        verdict = "better" if after == "ok" else "changed"
    return Judged(subject(now.case), "status", verdict, reason, row_id=now.case.row_id)


def _exact(then: TimedRow, now: TimedRow) -> Iterable[Judged]:
    for name in EXACT:
        before, after = getattr(then.row, name), getattr(now.row, name)
        if before is None or after is None:
            continue
        verdict = compare_exactly(METRICS[name], before, after)
        if verdict != "same":
            reason = METRICS[name].change(before, after)
            yield Judged(subject(now.case), name, verdict, reason, before, after, row_id=now.case.row_id)


def _times(rows: Sequence[tuple[TimedRow, TimedRow]], paired: bool, first_look: int | None) -> list[Judged]:
    """The verdicts on the times of rows that are ok in both runs, false discoveries controlled over all of them."""
    found, judged = [], []
    for then, now in rows:
        if evidence := _evidence(then, now, paired, first_look):
            found.append((then, now, evidence))
        else:
            judged.append(Judged(subject(now.case), "us", "unresolved", NO_PAIR, row_id=now.case.row_id))
    families = [tuple(getattr(now.case, axis) for axis in FAMILY) for _, now, _ in found]
    verdicts = control_false_discoveries([judge(evidence) for _, _, evidence in found], families)
    return judged + [_judged(*known, verdict) for known, verdict in zip(found, verdicts, strict=True)]


def _evidence(then: TimedRow, now: TimedRow, paired: bool, first_look: int | None) -> Evidence | None:
    """What both runs measured of a row; None where they have no pair in common."""
    old, new = (row.medians(str(row.row.method)) for row in (then, now))
    old_mhz, new_mhz = then.clocks(), now.clocks()
    if paired:
        common = sorted(old.keys() & new.keys())
        old, new = ({process: medians[process] for process in common} for medians in (old, new))
    if not old or not new:
        return None
    clocked = old.keys() <= old_mhz.keys() and new.keys() <= new_mhz.keys()
    looked_before = paired and first_look is not None and len(new) > first_look
    return Evidence(
        before=[old[process] for process in sorted(old)],
        now=[new[process] for process in sorted(new)],
        paired=paired,
        before_mhz=[old_mhz[process] for process in sorted(old)] if clocked else (),
        now_mhz=[new_mhz[process] for process in sorted(new)] if clocked else (),
        quantum_us=max(then.row.quantum_us or 0.0, now.row.quantum_us or 0.0),
        floor_us=max(then.row.floor_us or 0.0, now.row.floor_us or 0.0),
        confidence=SECOND_LOOK if looked_before else FIRST_LOOK,
    )


def _judged(then: TimedRow, now: TimedRow, evidence: Evidence, found: Verdict) -> Judged:
    suspicions = {text: "base" for text in [then.row.suspicion] if text}
    for text in filter(None, [now.row.suspicion]):
        suspicions[text] = "both" if text in suspicions else "head"
    notes = [f"suspect in {name}: {text}" for text, name in suspicions.items()]
    return Judged(
        subject=subject(now.case),
        metric="us",
        verdict=found.verdict,
        reason="; ".join(filter(None, [found.reason, *notes])),
        before=statistics.median(evidence.before),
        now=statistics.median(evidence.now),
        change=found.change,
        lo=found.lo,
        hi=found.hi,
        gate=found.gate,
        p_value=found.p_value,
        processes=min(len(evidence.before), len(evidence.now)),
        row_id=now.case.row_id,
    )


def _summed_up(cases: Iterable[Case]) -> Iterable[str]:
    """Cases in words, those that differ in tokens alone together: "write bf16:raw triton, 1, 16 tokens (…)"."""
    tokens: dict[Case, list[int]] = {}
    for case in cases:
        tokens.setdefault(dataclasses.replace(case, tokens=0, requests=0), []).append(case.tokens)
    for case, numbers in tokens.items():
        axes = {name: value for name, value in vars(case).items() if name not in UNNAMED and value is not None}
        others = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in axes.items())
        kernel = f"{case.operation} {case.format}:{case.revision} {case.provider}"
        yield f"{kernel}, {', '.join(map(str, sorted(set(numbers))))} {unit_of(case.queries)} ({others})"
