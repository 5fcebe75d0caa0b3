"""The kernel table as text: what a run says about each operation and format, every provider side by side.

``kernel_tables(rows)`` rounds, annotates and lays out what ``kernel_frame`` holds; ``renderings`` turns the result into
plain text, Markdown or rich tables and decides nothing.

How to read one: a line is a shape. ``floor %`` is the fastest this machine allows as a share of the time
(``Row.bound_share``): 100 % is the floor. A dash is an undefined value. ``*`` marks a launch-bound time, ``†`` an
emulated conversion, ``?`` a suspect figure. A row that is not ok shows its status, and the reasons follow the tables.
Where nothing was timed, the tables show what the compiler said and the predicted floor instead, below a headline that
says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsmla_bench.reports.kernel_frame import (
    AXES,
    BASELINE,
    KERNEL_KEYS,
    amount,
    in_order,
    kernel_frame,
    providers_of,
    told,
    unit_of,
)
from dsmla_bench.rows import OWN_AXES

LABELS = {
    "block_size": "block size",
    "page_order": "page order",
    "l2_state": "L2",
    "us": "µs",
    "gbps": "GB/s",
    "bound_share": "floor %",
    "spilled_bytes": "spilled B",
    "shared_bytes": "shared B",
    "predicted_us": "floor µs",
}
SHOWN = {
    "ok": ["us", "gbps", "bound_share"],
    "compiled": ["registers", "spilled_bytes", "shared_bytes", "predicted_us"],
}
"""The metrics of a table by the status of the rows that it shows numbers of."""

UNDEFINED = "–"
LAUNCH_BOUND, EMULATED, SUSPECT = "*", "†", "?"
MARKS = LAUNCH_BOUND + EMULATED + SUSPECT
NOTES = {
    "floor %": "floor %: the fastest this machine allows (an empty kernel, the bytes at a copy kernel's bandwidth, or "
    "a matrix product's rate) as a share of the time",
    "floor µs": "floor µs: the bytes at the vendor's published bandwidth; a prediction, not a measurement",
    LAUNCH_BOUND: "* launch-bound: under twice the time of an empty kernel, so it says little about the kernel and "
    "nothing between formats",
    SUSPECT: "? suspect: the figure may be wrong, for the reason below; no speed-up is drawn from it",
    EMULATED: "† conversion emulated: the target has no instruction for it; never compared with a native row",
}


@dataclass(frozen=True)
class Column:
    """One column as text.

    group     what stands above it and its neighbours, such as their provider; "" for nothing
    numeric   whether digits should stand below digits
    key       whether it says which line this is: such columns come first, and again where a table is cut into pieces
    """

    group: str
    name: str
    cells: tuple[str, ...]
    numeric: bool = True
    key: bool = False


@dataclass(frozen=True)
class Table:
    """One operation and format: a title, which also says what all its lines share, and columns of equal length."""

    title: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class KernelTables:
    """Everything a kernel report prints, in this order; "" and () where there is nothing to say.

    headline   why nothing was timed
    common     what holds for every row: device, method, and the axes that have one value throughout
    notes      what the columns and marks mean
    reasons    why rows are not ok, each said once
    """

    headline: str
    common: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    reasons: tuple[str, ...]


def significant(value: Any) -> str:
    """A number in 3 significant digits, without an exponent; an integer whole; None and <NA> as a dash."""
    if pd.isna(value) or not math.isfinite(value):
        return UNDEFINED
    if not isinstance(value, float):
        return str(value)
    rounded = float(f"{value:.2e}")
    exponent = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:.{max(0, 2 - exponent)}f}"


def kernel_tables(
    rows: pd.DataFrame,
    *,
    baseline: str = BASELINE,
    not_timed: str | None = None,
    default_revisions: Mapping[str, str] | None = None,
) -> KernelTables:
    """The tables of a run, one per operation, format and architecture.

    baseline            the provider whose speed-up over the others is shown
    not_timed           the manifest's sentence on why nothing was timed
    default_revisions   format → the revision that its bare name means; any other is named, and so is every revision of
                        a format that is missing here or that the run holds in several

    Raises ValueError when a case occurs twice for one provider.
    """
    frame = kernel_frame(rows, baseline)
    providers = providers_of(rows, baseline)
    timed_archs = set(rows.loc[rows["status"] == "ok", "arch"])
    compiled_archs = set(rows.loc[rows["status"] == "compiled", "arch"]) - timed_archs
    axes = ["arch", *_told_axes(frame)]
    shared = [axis for axis in axes if frame[axis].notna().all() and frame[axis].nunique() == 1]
    tables = []
    for key, group in frame.groupby(KERNEL_KEYS, sort=False):
        operation, format, revision, arch = map(str, key)
        names = [operation, format_label(rows, format, revision, default_revisions or {})]
        names += [] if "arch" in shared else [arch]
        own = [axis for axis in _told_axes(group) if group[axis].nunique() == 1 and axis not in (*shared, "tokens")]
        title = " · ".join(names) + (f" ({_phrase(group, own)})" if own else "")
        status = "compiled" if arch in compiled_archs else "ok"
        tables.append(Table(title, tuple(_columns(group, providers, baseline, status))))
    return KernelTables(
        headline=_headline(rows, not_timed),
        common=", ".join(
            filter(None, [*_constants(rows), _phrase(frame, [axis for axis in shared if axis != "tokens"])])
        ),
        tables=tuple(tables),
        notes=_notes(tables, providers, baseline),
        reasons=(*reasons(rows), *suspicions(rows)),
    )


def format_label(rows: pd.DataFrame, format: str, revision: str, default_revisions: Mapping[str, str]) -> str:
    """``format``, or ``format:revision`` where the bare name would not say which."""
    several = rows.loc[rows["format"] == format, "revision"].nunique() > 1
    return f"{format}:{revision}" if several or default_revisions.get(format) != revision else format


def counts(rows: pd.DataFrame) -> str:
    """How many rows have each status: "96 ok, 24 skipped"."""
    return ", ".join(f"{number} {status}" for status, number in rows["status"].value_counts().items()) or "no rows"


def reasons(rows: pd.DataFrame) -> tuple[str, ...]:
    """Why rows are not ok, each reason once: "skipped: vllm nvfp4_ds_mla:rn (write, gather; 12 rows): needs sm_100".

    Compiled rows are left out where nothing was timed: the headline speaks for them.
    """
    silent = ["ok"] if (rows["status"] == "ok").any() else ["ok", "compiled"]
    other = in_order(rows[~rows["status"].isin(silent)]).fillna({"reason": "no reason given"})
    lines = []
    for key, group in other.groupby(["status", "provider", "format", "revision", "reason"], sort=False):
        status, provider, format, revision, reason = map(str, key)
        where = f"{', '.join(group['operation'].unique())}; {len(group)} row{'s' * (len(group) > 1)}"
        lines.append(f"{status}: {provider} {format}:{revision} ({where}): {' '.join(reason.split())}{_worst(group)}")
    return tuple(lines)


def suspicions(rows: pd.DataFrame) -> tuple[str, ...]:
    """Why rows are suspect, a line each: "suspect: vllm write bf16:raw, 65536 tokens ordered: …"."""
    flagged = in_order(rows[rows["suspect"].fillna(False)])
    return tuple(
        f"suspect: {row['provider']} {row['operation']} {row['format']}:{row['revision']}, "
        f"{amount(row['tokens'], row['queries'])} {row['page_order']}, {_own_axes(row)}{significant(row['us'])} µs: "
        f"{row['suspicion']}"
        for row in flagged.to_dict("records")
    )


def _own_axes(row: Mapping[Hashable, Any]) -> str:
    """ "heads 64, topk 2048, ", or "" for an operation without own axes."""
    return "".join(f"{axis} {row[axis]}, " for axis in OWN_AXES if not pd.isna(row[axis]))


def _worst(group: pd.DataFrame) -> str:
    """How wrong the most wrong row of a group is, where bytes were compared and differ."""
    wrong = group[group["bytes_differing"].fillna(0) > 0]
    if wrong.empty:
        return ""
    row = wrong.sort_values("bytes_differing").iloc[-1]
    size = amount(row["tokens"], row["queries"])
    return f" (worst: {row['bytes_differing']} of {row['bytes_compared']} bytes differ, at {size})"


def _columns(group: pd.DataFrame, providers: list[str], baseline: str, status: str) -> list[Column]:
    """The columns of one table: varying axes, each provider's metrics, speed-ups.

    Columns of dashes are left out, and so are providers that serve nothing here: the reasons speak of them.
    """
    columns = _axis_columns(group)
    for provider in providers:
        statuses = group[f"{provider}_status"]
        if (statuses == status).any():
            columns += _provider_columns(group, provider, status)
        elif (statuses.notna() & (statuses != "skipped")).any():
            columns.append(Column(provider, "status", tuple(statuses.fillna(UNDEFINED))))
    others = providers[1:] if providers[0] == baseline else []
    columns += [_speed_up_column(group, baseline, other) for other in others]
    return [column for column in columns if set(column.cells) != {UNDEFINED}]


def _axis_columns(group: pd.DataFrame) -> list[Column]:
    """What a launch processes, and the axes that vary."""
    unit = unit_of(group["queries"].iloc[0])
    return [
        Column(
            "",
            unit if axis == "tokens" else LABELS.get(axis, axis),
            tuple(map(str, group[axis])),
            numeric=pd.api.types.is_numeric_dtype(group[axis]),
            key=True,
        )
        for axis in _told_axes(group)
        if axis == "tokens" or group[axis].nunique() > 1
    ]


def _told_axes(rows: pd.DataFrame) -> list[str]:
    return [axis for axis in AXES if told(rows, axis).any()]


def _provider_columns(group: pd.DataFrame, provider: str, shown: str) -> list[Column]:
    """A provider's metrics; the first column also carries the status of rows without numbers, and the marks."""
    columns: list[Column] = []
    for metric in SHOWN[shown]:
        cells = []
        for _, line in group.iterrows():
            status, value = line[f"{provider}_status"], line[f"{provider}_{metric}"]
            if not _is(status, shown):
                cells.append(UNDEFINED if columns or pd.isna(status) else str(status))
            else:
                text = significant(value * 100 if metric == "bound_share" else value)
                cells.append(text if columns else text + marks(line, provider))
        columns.append(Column(provider, LABELS.get(metric, metric), tuple(cells)))
    return columns


def _speed_up_column(group: pd.DataFrame, baseline: str, other: str) -> Column:
    cells = [speed_up_text(line, baseline, other) for _, line in group.iterrows()]
    return Column(f"{baseline} speed-up", f"over {other}", tuple(cells))


def speed_up_text(line: pd.Series[Any], baseline: str, other: str) -> str:
    """The baseline's speed-up of a line of ``kernel_frame``, with its marks: "1.73×*"."""
    value = line[f"speedup_over_{other}"]
    return UNDEFINED if pd.isna(value) else f"{significant(value)}×{marks(line, baseline, other)}"


def marks(line: pd.Series[Any], *providers: str) -> str:
    """The marks of a number that rests on the rows of ``providers`` in a line of ``kernel_frame``."""
    launch_bound = any(_is(line[f"{provider}_launch_bound"], True) for provider in providers)
    emulated = any(_is(line[f"{provider}_conversion"], "emulated") for provider in providers)
    suspect = any(_is(line[f"{provider}_suspect"], True) for provider in providers)
    return LAUNCH_BOUND * launch_bound + EMULATED * emulated + SUSPECT * suspect


def _is(value: Any, wanted: Hashable) -> bool:
    return not pd.isna(value) and bool(value == wanted)


def _phrase(frame: pd.DataFrame, axes: list[str]) -> str:
    """Axes that have one value in ``frame``: "block size 64, L2 cold"."""
    return ", ".join(f"{LABELS.get(axis, axis)} {frame[axis].iloc[0]}" for axis in axes)


def _constants(rows: pd.DataFrame) -> list[str]:
    """Device and method, where the run names one of each."""
    found = {name: rows[name].dropna().unique() for name in ("device", "method")}
    return [f"{name} {values[0]}" for name, values in found.items() if len(values) == 1]


def _headline(rows: pd.DataFrame, not_timed: str | None) -> str:
    if rows.empty:
        return not_timed or "The run holds no rows."
    if (rows["status"] == "ok").any():
        return ""
    why = not_timed or "; ".join(rows.loc[rows["status"] == "compiled", "reason"].dropna().unique())
    if "nothing was timed" in why.lower():
        return why
    return f"Nothing was timed: {why}" if why else f"Nothing was timed: no row is ok ({counts(rows)})."


def notes_on(names: Collection[str], cells: Iterable[str]) -> list[str]:
    """What columns of these names, and the marks in these cells, mean."""
    marked = "".join(cells)
    used = {*names, *(mark for mark in MARKS if mark in marked)}
    return [text for key, text in NOTES.items() if key in used]


def _notes(tables: list[Table], providers: list[str], baseline: str) -> tuple[str, ...]:
    """The notes that these tables need."""
    columns = [column for table in tables for column in table.columns]
    notes = notes_on({column.name for column in columns}, [cell for column in columns for cell in column.cells])
    if providers and baseline not in providers:
        notes.append(f"no speed-up: the run has no rows of {baseline} (it has {', '.join(providers)})")
    return tuple(notes)
