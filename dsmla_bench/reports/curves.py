"""Which rows a picture draws, and in words what they are: pure selection, no drawing.

A picture has a panel per operation, format and set of own axes (heads, topk, queries, variant), and in it one line per
provider over sizes. Where a run holds more (other page orders, block sizes, L2 states, …), one value of each axis is
drawn: ordered pages for write and shuffled ones for everything that reads, else the value with the most rows.
``describe`` says which.
"""

from __future__ import annotations

import pandas as pd

from dsmla_bench.reports.kernel_frame import KEYS, in_order, told
from dsmla_bench.reports.tables import LABELS, counts
from dsmla_bench.rows import OWN_AXES

SHAPE = "shape"
PANEL = ["operation", SHAPE, "format", "revision"]
"""What names a panel; ``with_shape`` adds the second."""
DESCRIBED = ["arch", "l2_state", "page_order", "block_size", "requests"]


class NothingToPlotError(ValueError):
    """A run that a picture cannot be drawn of; the message says why."""


def with_shape(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column ``shape``: those own axes that vary within the operation, "heads 64", else ""."""
    varying = {
        operation: [axis for axis in OWN_AXES if group[axis].nunique() > 1]
        for operation, group in rows.groupby("operation", sort=False)
    }
    shapes = [
        ", ".join(str(row[axis]) if axis == "variant" else f"{axis} {row[axis]}" for axis in varying[row["operation"]])
        for row in rows.to_dict("records")
    ]
    return rows.assign(**{SHAPE: pd.Series(shapes, index=rows.index, dtype="string")})


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """The timed rows to draw, with ``shape``: at most one per panel, provider and number of tokens, in order.

    Raises NothingToPlotError when no row is timed.
    """
    timed = rows[(rows["status"] == "ok") & rows["us"].notna() & (rows["tokens"] > 0)]
    if timed.empty:
        raise NothingToPlotError(f"there is nothing timed to plot: the run has {counts(rows)}")
    panels = with_shape(rows).loc[timed.index].groupby(PANEL, sort=False)
    return in_order(pd.concat([_one_line_each(panel) for _, panel in panels]))


def describe(drawn: pd.DataFrame) -> str:
    """Device, method and axes of the rows that are drawn: "NVIDIA H200, method graph, L2 cold, …"."""
    constants = [
        f"{name} " * (name != "device") + value for name in ("device", "method") for value in _values(drawn, name)
    ]
    unusual = [axis for axis in ("kv_lora_rank", "rope_dim", "data") if drawn[axis].nunique() > 1]
    unusual += [axis for axis in OWN_AXES if drawn[axis].notna().any()]
    described = (_describe_axis(drawn, axis) for axis in (*DESCRIBED, *unusual))
    return ", ".join([*constants, *filter(None, described)])


def _one_line_each(panel: pd.DataFrame) -> pd.DataFrame:
    """``panel`` with one value of every axis but tokens; for requests, the nearest to the most common at each size."""
    wanted = "ordered" if panel["operation"].iloc[0] == "write" else "shuffled"
    if (panel["page_order"] == wanted).any():
        panel = panel[panel["page_order"] == wanted]
    for axis in KEYS:
        if axis not in (*PANEL, "tokens", "requests") and panel[axis].nunique() > 1:
            panel = panel[panel[axis] == panel[axis].mode()[0]]
    distance = (panel["requests"] - panel["requests"].mode()[0]).abs()
    nearest: pd.DataFrame = panel[distance == distance.groupby(panel["tokens"]).transform("min")]
    return nearest.drop_duplicates(["provider", "tokens"], keep="last")


def _describe_axis(drawn: pd.DataFrame, axis: str) -> str:
    """ "page order ordered (write), shuffled (gather)"; "" for an axis that says nothing of these rows."""
    label = LABELS.get(axis, axis)
    known = drawn[drawn[axis].notna() & told(drawn, axis)]
    if known.empty:
        return ""
    by_operation = {str(name): _span(group[axis]) for name, group in known.groupby("operation", sort=False)}
    if len(set(by_operation.values())) == 1:
        return f"{label} {next(iter(by_operation.values()))}"
    return f"{label} " + ", ".join(f"{span} ({name})" for name, span in by_operation.items())


def _span(values: pd.Series) -> str:
    distinct = sorted(values.unique())
    if len(distinct) > 1 and pd.api.types.is_numeric_dtype(values):
        return f"{distinct[0]} to {distinct[-1]}"
    return "/".join(map(str, distinct))


def _values(frame: pd.DataFrame, column: str) -> list[str]:
    return [str(value) for value in frame[column].dropna().unique()]
