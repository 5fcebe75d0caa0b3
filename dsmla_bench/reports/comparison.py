"""Two runs → one comparison: may they be compared, what is said of each row, what only one of them has.

``compare(base, head)`` refuses unlike runs, naming the field, unless forced; then it says so in the result. A kind of
run is judged by its entry in ``JUDGES``: a new kind is one function from two runs to a ``Judgement``, and one entry.
Pure judgement: ``comparison_tables`` and ``comparison_exports`` present it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsmla_bench.reports.comparability import ERROR, KERNELS, Mismatch, differences, kind_of, mismatches
from dsmla_bench.reports.error_changes import judge_errors
from dsmla_bench.reports.judged import FAILING, UNSETTLED, VERDICTS, Judged, Judgement
from dsmla_bench.reports.static_changes import Change, static_changes
from dsmla_bench.reports.timed_changes import are_paired, judge_rows
from dsmla_bench.results import Run, RunError


class UnlikeRunsError(RunError):
    """Two runs whose figures say nothing about each other; the message names every field."""


@dataclass(frozen=True)
class Comparison:
    """What was found. ``judged`` is sorted: the gravest verdict first, then the largest change.

    base, head   run ids
    paired       whether they were measured in turns
    forced       fields in which the runs are unlike and were compared all the same
    differences  what else differs, in words
    missing, added   rows that only the base or only the head has, in words
    """

    base: str
    head: str
    device: str
    paired: bool
    forced: tuple[str, ...]
    differences: tuple[str, ...]
    judged: tuple[Judged, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def findings(self) -> tuple[Judged, ...]:
        """What makes the exit code 1."""
        return tuple(found for found in self.judged if found.verdict in FAILING)

    @property
    def unsettled(self) -> tuple[Judged, ...]:
        """What was not told either way."""
        return tuple(found for found in self.judged if found.verdict in UNSETTLED)

    @property
    def counts(self) -> dict[str, int]:
        """How many figures have each verdict, the gravest first; verdicts that none has are left out."""
        found = Counter(judged.verdict for judged in self.judged)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def compare(base: Run, head: Run, *, force: bool = False) -> Comparison:
    """Compare two runs of one kind.

    Raises UnlikeRunsError for runs that are unlike unless ``force`` is given, and always for runs of different kinds;
    RunError when they have no row in common, so that a gate cannot pass by comparing nothing.
    """
    rows = base.rows(), head.rows()
    unlike = mismatches(base, head, rows)
    if unlike and (kind_of(base) != kind_of(head) or not force):
        fields = "; ".join(map(str, unlike))
        advice = "" if kind_of(base) != kind_of(head) else "; compare like with like, or give --force"
        raise UnlikeRunsError(f"{base.path} and {head.path} cannot be compared: {fields}{advice}")
    if kind_of(base) not in JUDGES:
        raise RunError(f"runs of kind {kind_of(base)!r} cannot be compared; {', '.join(JUDGES)} can")
    judgement = JUDGES[kind_of(base)](base, head, _ignored(unlike))
    if not judgement.judged:
        raise RunError(
            f"{base.path} and {head.path} have no row in common that could be compared: "
            f"{len(judgement.missing)} are in the first alone, {len(judgement.added)} in the second"
        )
    return Comparison(
        base=base.run_id,
        head=head.run_id,
        device=str((head.manifest.get("device") or {}).get("name") or ""),
        paired=are_paired(base, head),
        forced=tuple(map(str, unlike)),
        differences=differences(base, head, rows),
        judged=tuple(sorted(judgement.judged, key=_gravity)),
        missing=judgement.missing,
        added=judgement.added,
    )


def judge_kernels(base: Run, head: Run, ignored: Collection[str] = ()) -> Judgement:
    """Timed rows, and the machine code of compiled ones."""
    timed = judge_rows(base, head, ignored)
    if not all(any(m.status == "compiled" for m in run.measurements) for run in (base, head)):
        return timed
    static = static_changes(base.rows(), head.rows())
    code = [
        *_of_code("worse", static.findings),
        *_of_code("changed", static.changes),
        Judged(f"{static.compared} compiled rows", "code", "same", "compared fact by fact; what differs is listed"),
    ]
    return Judgement(
        (*timed.judged, *code),
        (*timed.missing, *map(str, static.gone)),
        (*timed.added, *map(str, static.added)),
    )


JUDGES: Mapping[str, Callable[[Run, Run, Collection[str]], Judgement]] = {KERNELS: judge_kernels, ERROR: judge_errors}
"""Kind of run → how two of them are judged, without the axes named last."""


def _of_code(verdict: str, changes: Iterable[Change]) -> Iterable[Judged]:
    for change in changes:
        yield Judged(f"{change.kernel}, {change.sizes}", "code", verdict, change.text)


def _ignored(unlike: Iterable[Mismatch]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(mismatch.axis for mismatch in unlike if mismatch.axis is not None))


def _gravity(found: Judged) -> tuple[Any, ...]:
    return list(VERDICTS).index(found.verdict), -abs(found.change or 0.0), found.subject, found.metric
