"""What a report says of a kernel run, timed or compiled: its section, and the tables that commands print.

    rows.csv       every column of every row, full precision
    table.csv      the kernel tables as numbers, one line per shape
    us, gbps, speed_up   pictures against tokens; predicted floors where nothing was timed
    kernels        what the machine code of compiled kernels consists of, where there are some

Operations with axes of their own (heads, variant, …) have pictures of their own: us_decode, …
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from dsmla_bench.reports.kernel_frame import BASELINE, in_order, kernel_frame
from dsmla_bench.reports.kernel_plots import gbps_figure, speed_up_figure, us_figure
from dsmla_bench.reports.run_facts import default_revisions, run_facts
from dsmla_bench.reports.sections import Section, drawn
from dsmla_bench.reports.static_plot import instructions_figure
from dsmla_bench.reports.static_table import has_static_facts, static_tables
from dsmla_bench.reports.tables import KernelTables, counts, kernel_tables
from dsmla_bench.results import Run, RunError
from dsmla_bench.rows import OWN_AXES

FIGURES = {"us": us_figure, "gbps": gbps_figure, "speed_up": speed_up_figure}


def kernel_section(run: Run, baseline: str = BASELINE) -> Section:
    """The section of a sweep or of ``dsmla-bench compile``. Raises RunError when it has no row."""
    rows = measured_rows(run)
    where = _where(rows)
    tables = run_tables(run, rows, baseline)
    return Section(
        title=f"Kernels on {where}" if where else "Kernels",
        outcome=tables.headline or ", ".join(filter(None, [counts(rows), _correctness(rows)])),
        facts=run_facts(run, counts(rows)),
        tables={"": tables, **_compiled_beside_timed(run, rows)},
        pictures=drawn(_figures(rows, baseline, default_revisions(run))),
        data={"rows": rows, "table": kernel_frame(rows, baseline)},
    )


def measured_rows(run: Run) -> pd.DataFrame:
    """The rows of a run that has some. Raises RunError for one without, of which a report would say nothing."""
    rows = run.rows()
    if rows.empty:
        raise RunError(f"{run.path}: holds no row to report; measure some with `dsmla-bench kernels --resume`")
    return rows


def run_tables(run: Run, rows: pd.DataFrame, baseline: str = BASELINE) -> KernelTables:
    """The kernel tables of ``rows``, which are the run's or a selection of them, with what its manifest adds.

    Where nothing was timed but kernels were compiled, those of ``static_table``.
    """
    if has_static_facts(rows) and not (rows["status"] == "ok").any():
        return static_tables(rows, headline=_why_not_timed(run), default_revisions=default_revisions(run))
    tables = kernel_tables(
        rows,
        baseline=baseline,
        not_timed=run.manifest.get("not_timed"),
        default_revisions=default_revisions(run),
    )
    return dataclasses.replace(tables, headline=run.manifest.get("headline") or tables.headline)


def _why_not_timed(run: Run) -> str:
    return run.manifest.get("headline") or f"Nothing was timed: {run.manifest.get('not_timed') or 'no reason given'}"


def _where(rows: pd.DataFrame) -> str:
    devices = rows["device"].dropna().unique()
    return str(devices[0]) if len(devices) == 1 else ""


def _correctness(rows: pd.DataFrame) -> str:
    compared = rows["bytes_compared"].notna().sum()
    incorrect = (rows["status"] == "incorrect").sum()
    return f"{incorrect} of {compared} whose bytes were compared are incorrect" if compared else ""


def _figures(rows: pd.DataFrame, baseline: str, revisions: Mapping[str, str]) -> dict[str, Callable[[], Figure]]:
    """Every picture by name, as a function that draws it."""
    figures: dict[str, Callable[[], Figure]] = {}
    if has_static_facts(rows):
        figures["kernels"] = functools.partial(instructions_figure, rows, default_revisions=revisions)
    for suffix, operations in _picture_groups(rows).items():
        for name, figure in FIGURES.items():
            figures[name + suffix] = functools.partial(
                figure, rows, operations, baseline=baseline, default_revisions=revisions
            )
    return figures


def _picture_groups(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Suffix of a picture's name → the operations that it draws: those without own axes together, others alone.

    The suffix becomes part of a file's name, and the operation's may come from anywhere.
    """
    operations = list(in_order(rows)["operation"].unique())
    own = [name for name in operations if rows.loc[rows["operation"] == name, list(OWN_AXES)].notna().any(axis=None)]
    shared = [name for name in operations if name not in own]
    groups = {"": shared} if shared or not own else {}
    return groups | {f"_{re.sub('[^A-Za-z0-9_-]', '-', name)}": [name] for name in own}


def _compiled_beside_timed(run: Run, rows: pd.DataFrame) -> dict[str, KernelTables]:
    """The tables of compiled kernels for a run that also timed some, whose main tables are those."""
    if not has_static_facts(rows) or not (rows["status"] == "ok").any():
        return {}
    tables = static_tables(rows, default_revisions=default_revisions(run))
    return {"Compiled, not timed": dataclasses.replace(tables, reasons=())}
