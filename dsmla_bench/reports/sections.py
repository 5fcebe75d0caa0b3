"""What a report says of one run: a section of facts, pictures, tables and data, whatever the run measured.

A section knows nothing of files and pages: ``kernel_report``, ``error_report``, ``accuracy_report`` and
``comparison_tables`` make what it holds, ``report`` writes it, ``page`` lays it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pandas as pd
from matplotlib.figure import Figure

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.tables import KernelTables

Pictures = Mapping[str, Figure | str]
"""Name of a picture, without a suffix → the picture, or why there is none. A figure's label is its alternative text."""


@dataclass(frozen=True)
class Section:
    """One run, or one comparison of two, in a report.

    title     what was measured where
    outcome   the one sentence that a summary needs; "" where the tables say it
    facts     what ran where, a line each
    tables    heading → tables, in order; "" for the main ones
    data      name of a CSV file, without its suffix → the figures behind the tables, full precision
    """

    title: str
    outcome: str
    facts: tuple[str, ...]
    tables: Mapping[str, KernelTables]
    pictures: Pictures = field(default_factory=dict)
    data: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def drawn(figures: Mapping[str, Callable[[], Figure]]) -> Pictures:
    """Every picture that can be drawn; for the others why not."""
    pictures: dict[str, Figure | str] = {}
    for name, draw in figures.items():
        try:
            pictures[name] = draw()
        except NothingToPlotError as reason:
            pictures[name] = str(reason)
    return pictures
