"""What changed between two runs of compiled kernels, and what of it is a regression. Pure judgement over rows.

Rows are compared where both runs have the same case, whatever its page order, L2 state and data, which do not change a
kernel. A finding, which fails a gate, is

* a kernel that compiled and no longer does;
* a spill: more spilled bytes than before;
* occupancy lost to more registers or more shared memory per warp;
* narrower global loads or stores: bytes that went by wide instructions go by narrower ones. An instruction more, or a
  vector less because a program does less, is none;
* a native conversion (e4m3, e2m1) that the code no longer uses.

Every other difference of ``COMPARED`` is a change: worth reading, no reason to fail. So are rows that only one run has.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsmla_bench.reports.kernel_frame import in_order, unit_of
from dsmla_bench.reports.static_table import KERNEL, WIDTHS
from dsmla_bench.reports.tables import significant

COMPARED = {
    "registers": "registers",
    "occupancy": "occupancy %",
    "shared_bytes": "shared B",
    "spilled_bytes": "spilled B",
    "stack_bytes": "stack B",
    "instructions": "instructions",
    "bytes_per_global_instruction": "bytes per global instruction",
}
"""The columns whose differences are listed, and what they are called."""


@dataclass(frozen=True)
class Change:
    """One difference of one kernel: ``kernel`` names it, ``tokens`` are the shapes that have it, ``unit`` of what."""

    kernel: str
    text: str
    tokens: tuple[int, ...]
    unit: str = "tokens"

    @property
    def sizes(self) -> str:
        """ "1, 8192 tokens", "1 token"."""
        unit = self.unit.removesuffix("s") if self.tokens == (1,) else self.unit
        return f"{', '.join(map(str, self.tokens))} {unit}"

    def __str__(self) -> str:
        return f"{self.kernel} ({self.sizes}): {self.text}"


@dataclass(frozen=True)
class StaticChanges:
    """``findings`` fail a gate, ``changes`` do not; ``gone`` and ``added`` name kernels that only one run has."""

    compared: int
    findings: tuple[Change, ...] = ()
    changes: tuple[Change, ...] = ()
    gone: tuple[Change, ...] = ()
    added: tuple[Change, ...] = ()


def static_changes(before: pd.DataFrame, now: pd.DataFrame) -> StaticChanges:
    """Compare the compiled rows of two runs, as ``results.rows_frame`` makes them.

    Raises ValueError when there is no row to compare, so that a gate cannot pass by comparing nothing.
    """
    old, new = _by_kernel(before), _by_kernel(now)
    compiled = {key for key, row in old.items() if _compiled(row)}
    pairs = [(old[key], row) for key, row in new.items() if key in compiled]
    if not pairs:
        raise ValueError(
            f"there is nothing to compare: of {len(compiled)} kernels compiled before none is among the {len(new)} of "
            "now; compile the same operations, formats and targets"
        )
    return StaticChanges(
        compared=len(pairs),
        findings=_merged((row, text) for then, row in pairs for text in _findings(then, row)),
        changes=_merged((row, text) for then, row in pairs if (text := _difference(then, row))),
        gone=_merged((row, "not in this run") for key, row in old.items() if key in compiled and key not in new),
        added=_merged((row, "new") for key, row in new.items() if _compiled(row) and key not in compiled),
    )


def _by_kernel(rows: pd.DataFrame) -> dict[Hashable, pd.Series[Any]]:
    """The rows that were not timed by what decides their kernel; those that differ otherwise have the same facts."""
    untimed = in_order(rows[rows["status"] != "ok"]).drop_duplicates([*KERNEL, "tokens", "requests"])
    return {tuple(row[[*KERNEL, "tokens", "requests"]]): row for _, row in untimed.iterrows()}


def _compiled(row: pd.Series[Any]) -> bool:
    return bool(row["status"] == "compiled") and not pd.isna(row["registers"])


def _findings(then: pd.Series[Any], now: pd.Series[Any]) -> Iterable[str]:
    if not _compiled(now):
        yield f"no longer compiles: {now['status']}: {now['reason']}"
        return
    if _grew(then, now, "spilled_bytes"):
        yield f"spills registers: {_step(then, now, 'spilled_bytes')}"
    if _grew(now, then, "occupancy") and (_grew(then, now, "registers") or _grew(then, now, "shared_bytes")):
        costs = [name for name in ("registers", "shared_bytes") if _grew(then, now, name)]
        why = ", ".join(_step(then, now, name) for name in costs)
        yield f"loses occupancy: {_step(then, now, 'occupancy')}, limited by {now['occupancy_limit']} ({why})"
    for kind in ("loads", "stores"):
        if _narrower(_bytes_by_width(then, kind), _bytes_by_width(now, kind)):
            yield f"narrower global {kind}: {_by_width(then, kind)} → {_by_width(now, kind)}"
    for column, name in (("native_fp8", "e4m3"), ("native_fp4", "e2m1")):
        if _is_true(then[column]) and not _is_true(now[column]):
            yield f"no longer uses the native {name} conversion"


def _difference(then: pd.Series[Any], now: pd.Series[Any]) -> str:
    """Every compared column that differs: "registers 72 → 70, instructions 610 → 598"."""
    if not _compiled(now):
        return ""
    differing = [name for name in COMPARED if _differ(then[name], now[name])]
    return ", ".join(_step(then, now, name) for name in differing)


def _grew(then: pd.Series[Any], now: pd.Series[Any], column: str) -> bool:
    return not pd.isna(then[column]) and not pd.isna(now[column]) and bool(now[column] > then[column])


def _differ(first: Any, second: Any) -> bool:
    return not pd.isna(first) and not pd.isna(second) and bool(first != second)


def _is_true(value: Any) -> bool:
    return not pd.isna(value) and bool(value)


def _step(then: pd.Series[Any], now: pd.Series[Any], column: str) -> str:
    return f"{COMPARED[column]} {significant(then[column])} → {significant(now[column])}"


def _bytes_by_width(row: pd.Series[Any], kind: str) -> dict[int, int]:
    """Bytes that one thread moves by instructions of each width; {} for a row without an instruction mix."""
    counts = {bits: row[f"global_{kind}_{bits}"] for bits in WIDTHS}
    return {} if any(map(pd.isna, counts.values())) else {bits: bits // 8 * int(n) for bits, n in counts.items()}


def _narrower(then: dict[int, int], now: dict[int, int]) -> bool:
    """Whether bytes moved from instructions of some width and above to those below it."""
    if not then or not now:
        return False

    def moved(by_width: dict[int, int], least: int) -> tuple[int, int]:
        wide = sum(nbytes for bits, nbytes in by_width.items() if bits >= least)
        return wide, sum(by_width.values()) - wide

    steps = [(moved(then, least), moved(now, least)) for least in WIDTHS[1:]]
    return any(now_wide < wide and now_narrow > narrow for (wide, narrow), (now_wide, now_narrow) in steps)


def _by_width(row: pd.Series[Any], kind: str) -> str:
    """Instructions by width, the widest first: "4 of 128 bits, 9 of 64"."""
    counts = [(bits, row[f"global_{kind}_{bits}"]) for bits in reversed(WIDTHS) if row[f"global_{kind}_{bits}"]]
    return ", ".join(f"{count} of {bits} bits" for bits, count in counts) or "none"


def _merged(differences: Iterable[tuple[pd.Series[Any], str]]) -> tuple[Change, ...]:
    """The differences with shapes of the same kernel that say the same put together."""
    tokens: dict[tuple[str, str, str], list[int]] = {}
    for row, text in differences:
        kernel = f"{row['arch']} {row['operation']} {row['format']}:{row['revision']} {row['provider']}"
        tokens.setdefault((kernel, text, unit_of(row["queries"])), []).append(int(row["tokens"]))
    return tuple(
        Change(kernel, text, tuple(sorted(set(shapes))), unit) for (kernel, text, unit), shapes in tokens.items()
    )


def describe(changes: StaticChanges, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The changes as lines of text; ``before`` and ``now`` are the manifests of the two runs."""
    then, today = ((manifest.get("packages") or {}).get("triton") for manifest in (before, now))
    lines = [f"compared with {before.get('run_id')}: {_count(changes.compared, 'row')}"]
    if then != today:
        lines.append(f"note: compiled by Triton {today} now and by {then} before; its changes show too")
    for name, found in (
        ("REGRESSION", changes.findings),
        ("changed", changes.changes),
        ("missing", changes.gone),
        ("added", changes.added),
    ):
        lines += [f"{name}: {change}" for change in found]
    if not (changes.findings or changes.changes or changes.gone or changes.added):
        return [*lines, "no static change"]
    return [*lines, _count(len(changes.findings), "regression")]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
