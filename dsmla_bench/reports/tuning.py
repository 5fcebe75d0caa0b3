"""What a tuning run says: how every configuration fared, whether the tables still hold, and what they should hold.

Pure over rows. Of a tuning run the column ``provider`` is the configuration, and the manifest's ``present`` has the
row_ids of those that the operations' tables choose (``bench.tune``). An entry of a table decides for several formats at
once, so it is judged over all of them: it holds while no format loses more than 2 % by it, and otherwise should be the
configuration whose worst format loses least.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dsmla_bench.reports.kernel_frame import amount
from dsmla_bench.reports.tables import UNDEFINED, significant
from dsmla_bench.rows import OWN_AXES, Case, Row

NEAR = 0.02
"""By how much longer than the best one a configuration may take to pass for the best."""
T = TypeVar("T")
CASE_AXES = tuple(field.name for field in dataclasses.fields(Case) if field.name != "provider")
ENTRY_AXES = tuple(name for name in CASE_AXES if name not in ("format", "revision", "kv_lora_rank", "rope_dim"))


@dataclass(frozen=True)
class TunedCase:
    """One case in its configurations: the timed rows, fastest first, the others, and the table's choice by name."""

    timed: tuple[Row, ...]
    failed: tuple[Row, ...]
    present: str | None

    @property
    def row(self) -> Row:
        """Any of its rows: they share all axes but the configuration."""
        return (*self.timed, *self.failed)[0]

    @property
    def slower(self) -> dict[str, float]:
        """Configuration → how much longer it takes than the fastest, as a share of that; timed ones only."""
        return {row.provider: _us(row) / _us(self.timed[0]) - 1 for row in self.timed}


@dataclass(frozen=True)
class Entry:
    """One entry of an operation's table: the cases that it decides, what it holds, and what it should hold.

    ``slower`` has configuration → by which share the worst of the cases loses to its best, of configurations that
    were timed in all of them.
    """

    cases: tuple[TunedCase, ...]
    slower: Mapping[str, float]

    @property
    def now(self) -> str | None:
        """The configuration that the table holds."""
        return self.cases[0].present

    @property
    def wanted(self) -> str | None:
        """The one that it should hold: what it holds where that is near the best; None where nothing was timed."""
        if self.now is not None and self.slower.get(self.now, 1.0) <= NEAR:
            return self.now
        return min(self.slower, key=lambda name: self.slower[name], default=None)


def tuned_cases(rows: Sequence[Row], present: Collection[str]) -> list[TunedCase]:
    """The cases of a run in the order of their first rows. ``present`` are the row_ids of the tables' choices."""
    return [_tuned_case(group, present) for group in _grouped(rows, lambda row: _axes(row, CASE_AXES))]


def _tuned_case(rows: Sequence[Row], present: Collection[str]) -> TunedCase:
    timed = sorted((row for row in rows if row.status == "ok"), key=_us)
    failed = [row for row in rows if row.status != "ok"]
    chosen = next((row.provider for row in rows if row.row_id in present), None)
    return TunedCase(tuple(timed), tuple(failed), chosen)


def entries(cases: Sequence[TunedCase]) -> list[Entry]:
    """Cases that differ in their format alone, and to which the table gives one configuration, put together."""
    return [_entry(group) for group in _grouped(cases, lambda case: (*_axes(case.row, ENTRY_AXES), case.present))]


def _entry(cases: Sequence[TunedCase]) -> Entry:
    losses = [case.slower for case in cases]
    shared = [name for name in losses[0] if all(name in loss for loss in losses)]
    return Entry(tuple(cases), {name: max(loss[name] for loss in losses) for name in shared})


def case_lines(case: TunedCase) -> list[list[str]]:
    """A case as lines of cells: configuration, µs, share of the floor, how much longer than the best, remarks."""
    lines = [["configuration", "µs", "of floor", "longer", ""]]
    for row in case.timed:
        share = f"{100 * row.bound_share:.1f} %" if row.bound_share else UNDEFINED
        longer = _percent(case.slower[row.provider])
        lines.append([row.provider, significant(row.us), share, longer, _remark(case, row, row.suspicion)])
    for row in case.failed:
        remark = _remark(case, row, f"{row.status}: {row.reason}")
        lines.append([row.provider, UNDEFINED, UNDEFINED, UNDEFINED, remark])
    return lines


def _remark(case: TunedCase, row: Row, text: str | None) -> str:
    held = "in the table" if row.provider == case.present else None
    return "; ".join(filter(None, [held, text]))


def case_title(case: TunedCase) -> str:
    """``gather fp8_ds_mla:pow2, 8192 tokens``, and what the floor is."""
    row = case.row
    floor = f", floor {significant(row.bound_us)} µs" if row.bound_us else ""
    return f"{row.operation} {row.format}:{row.revision}, {_size(row)}{floor}"


def entry_lines(found: Sequence[Entry]) -> list[list[str]]:
    """The tables' entries as lines of cells: what is decided, what is held and what by, what should be held."""
    lines = [["operation", "at", "formats", "in the table", "longer", "verdict", "longer"]]
    for entry in found:
        row, now, wanted = entry.cases[0].row, entry.now, entry.wanted
        verdict = "nothing was timed" if wanted is None else "keep" if now == wanted else wanted
        lines.append(
            [
                f"{row.operation} {row.arch}",
                _size(row),
                ", ".join(dict.fromkeys(case.row.format for case in entry.cases)),
                now or UNDEFINED,
                _percent(entry.slower.get(now or "")),
                verdict,
                _percent(entry.slower.get(wanted or "")),
            ]
        )
    return lines


def entry_facts(entry: Entry) -> dict[str, object]:
    """An entry as plain data for JSON."""
    row, now, wanted = entry.cases[0].row, entry.now, entry.wanted
    return {
        **dict(zip(ENTRY_AXES, _axes(row, ENTRY_AXES), strict=True)),
        "formats": [f"{case.row.format}:{case.row.revision}" for case in entry.cases],
        "present": now,
        "present_slower": entry.slower.get(now or ""),
        "wanted": wanted,
        "wanted_slower": entry.slower.get(wanted or ""),
        "holds": wanted is not None and now == wanted,
    }


def _us(row: Row) -> float:
    assert row.us is not None  # rows that are ok have a time
    return row.us


def _size(row: Row) -> str:
    own = [f"{name} {value}" for name in OWN_AXES if (value := getattr(row, name)) is not None]
    return ", ".join([amount(row.tokens, row.queries), *own])


def _percent(share: float | None) -> str:
    return UNDEFINED if share is None else f"{100 * share:.1f} %"


def _axes(row: Row, names: Sequence[str]) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in names)


def _grouped(items: Sequence[T], key: Callable[[T], object]) -> list[list[T]]:
    """The items by their keys, groups and members in the order in which they come."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
