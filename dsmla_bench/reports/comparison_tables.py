"""A comparison as text tables, findings first; ``renderings`` lays them out for a terminal, a file or Markdown.

Times show base and head in µs, the change (Hodges–Lehmann) with its interval, and the gate that it was held against.
Rows that are the same are counted, and listed only when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dsmla_bench.reports.comparison import Comparison
from dsmla_bench.reports.judged import FAILING, UNSETTLED, VERDICTS, Judged
from dsmla_bench.reports.metrics import METRICS
from dsmla_bench.reports.renderings import to_markdown
from dsmla_bench.reports.tables import UNDEFINED, Column, KernelTables, Table, significant

MARKER = "<!-- dsmla-bench compare -->"
"""First line of the Markdown, so that a bot can find its last comment and replace it."""
MOST_LINES = 100
"""Lines of one table: a pull-request comment holds 65 536 characters."""
SECTIONS = {
    "Findings": FAILING,
    "Improvements and other changes": ("fast", "better", "changed"),
    "Not settled": UNSETTLED,
    "Same": ("same",),
}
METHOD = {
    True: "change: Hodges–Lehmann over pairs of processes measured in turns, with its exact signed-rank interval",
    False: "change: Hodges–Lehmann over process medians of runs that were not measured in turns, with its exact "
    "rank-sum interval; changes under 5 % are not looked for: dsmla-bench ab finds 3 %",
}
GATE = "gate: the largest of what is looked for, twice the clock's quantum, and the row's own noise between processes"


def comparison_tables(comparison: Comparison, *, everything: bool = False) -> KernelTables:
    """The tables of a comparison; ``everything`` also lists what is the same."""
    sections = {
        title: [found for found in comparison.judged if found.verdict in verdicts]
        for title, verdicts in SECTIONS.items()
        if everything or title != "Same"
    }
    tables = [_table(title, found) for title, found in sections.items() if found]
    timed = any(found.metric == "us" for found in comparison.judged)
    explained = [f"{verdict}: {VERDICTS[verdict]}" for verdict in comparison.counts if verdict != "same"]
    return KernelTables(
        headline=headline(comparison),
        common=", ".join(
            filter(None, [f"base {comparison.base}, head {comparison.head}", comparison.device, _processes(comparison)])
        ),
        tables=tuple(tables),
        notes=(*((METHOD[comparison.paired], GATE) if timed else ()), *explained),
        reasons=_remarks(comparison),
    )


def comparison_markdown(comparison: Comparison) -> str:
    """The comparison for a pull-request comment, behind a marker by which the next one can replace it."""
    return f"{MARKER}\n\n{to_markdown(comparison_tables(comparison))}"


def headline(comparison: Comparison) -> str:
    """The outcome in one line: "Worse: 2 slow, 58 same.", and whether unlike runs were forced together."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in comparison.counts.items())
    forced = f" FORCED although unlike in {'; '.join(comparison.forced)}" if comparison.forced else ""
    told = "No regression" if set(comparison.counts) - set(UNSETTLED) else "Nothing settled"
    return f"{'Worse' if comparison.findings else told}: {counts}.{forced}"


def outcome(found: Judged) -> str:
    """One judged figure in one line: "slow, 7.98 → 8.22 µs, +3.1 % (99 % interval +2.8 to +3.4 %)"."""
    if found.metric != "us":
        return f"{found.verdict}, {_label(found)}: {found.reason}"
    figures = f"{_figure(found.before)} → {_figure(found.now)} µs, {_change(found)} ({_interval(found)})"
    return f"{found.verdict}, {figures}" + (f"; {found.reason}" if found.reason else "")


def _table(title: str, judged: Sequence[Judged]) -> Table:
    shown = judged[:MOST_LINES]
    more = f" (the first {MOST_LINES} of {len(judged)})" if len(judged) > MOST_LINES else ""
    columns = [
        Column("", "verdict", tuple(found.verdict for found in shown), numeric=False, key=True),
        Column("", "row", tuple(found.subject for found in shown), numeric=False, key=True),
        Column("", "figure", tuple(_label(found) for found in shown), numeric=False, key=True),
        Column("", "base", tuple(_figure(found.before) for found in shown)),
        Column("", "head", tuple(_figure(found.now) for found in shown)),
        Column("", "change", tuple(_change(found) for found in shown)),
        Column("", "interval", tuple(_interval(found) for found in shown)),
        Column("", "gate", tuple(_percent(found.gate, "") for found in shown)),
        Column("", "why", tuple(found.reason for found in shown), numeric=False),
    ]
    return Table(title + more, tuple(column for column in columns if set(column.cells) - {"", UNDEFINED}))


def _label(found: Judged) -> str:
    metric = METRICS.get(found.metric)
    return found.metric if metric is None else f"{metric.label} {metric.unit}".strip()


def _figure(value: float | None) -> str:
    """Four significant digits, one more than elsewhere: what is compared differs by little."""
    if value is None or isinstance(value, int) or not 1e-3 <= abs(value) < 1e3:
        return significant(value)
    return f"{value:#.4g}"


def _change(found: Judged) -> str:
    if found.metric != "us" and found.before is not None and found.now is not None:
        return METRICS[found.metric].change(found.before, found.now)
    return _percent(found.change)


def _interval(found: Judged) -> str:
    if found.lo is None or found.hi is None or not math.isfinite(found.lo + found.hi):
        return UNDEFINED
    return f"{100 * found.lo:+.1f} to {100 * found.hi:+.1f} %"


def _percent(value: float | None, sign: str = "+") -> str:
    return UNDEFINED if value is None else f"{100 * value:{sign}.1f} %"


def _processes(comparison: Comparison) -> str:
    numbers = {found.processes for found in comparison.judged if found.processes is not None}
    what = "pairs" if comparison.paired else "processes of each"
    return f"{' to '.join(str(number) for number in sorted({min(numbers), max(numbers)}))} {what}" if numbers else ""


def _remarks(comparison: Comparison) -> tuple[str, ...]:
    """What only one run has, and what else differs between the runs."""
    return (
        *_listed("missing in head", comparison.missing),
        *_listed("only in head", comparison.added),
        *(f"differs: {line}" for line in comparison.differences),
    )


def _listed(what: str, rows: Sequence[str]) -> Iterable[str]:
    yield from (f"{what}: {row}" for row in rows[:MOST_LINES])
    if len(rows) > MOST_LINES:
        yield f"{what}: {len(rows) - MOST_LINES} more"
