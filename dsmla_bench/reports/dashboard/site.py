"""Writes the dashboard's folder from a history."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

from plotly.offline import get_plotlyjs

from dsmla_bench.history import EVERYTHING, History, Part
from dsmla_bench.history_rows import HistoryError
from dsmla_bench.places import Place, Where, failing_as, place, write
from dsmla_bench.reports.dashboard import figures
from dsmla_bench.reports.trend_frame import Trends, read_trends, rows_of
from dsmla_bench.reports.trend_names import MAIN_AXES

DATA = "dashboard-data"
CANNOT_WRITE = ("cannot write the dashboard here", "name a writable folder")


def write_dashboard(history: History, out: Where, part: Part = EVERYTHING) -> Place:
    """Write the site of that part of ``history`` into the folder or URL ``out``; its index.html.

    Files of an earlier site are replaced, others are left alone. Raises HistoryError when the history cannot be read or
    holds nothing, or ``out`` cannot be written.
    """
    folder, tables = place(out), read_trends(history, part)
    with failing_as(HistoryError, folder, *CANNOT_WRITE):
        for stale in (folder / DATA).glob("*.js"):
            stale.unlink()
    for name, content in itertools.chain(_pages(), _data(tables)):
        with failing_as(HistoryError, folder, *CANNOT_WRITE):
            write(folder / name, content)
    return folder / "index.html"


def _pages() -> Iterator[tuple[str, bytes]]:
    """Name and content of the files that hold no data."""
    for page in (resources.files(__package__) / "pages").iterdir():
        yield page.name, page.read_bytes()
    yield "plotly.min.js", get_plotlyjs().encode("utf-8")


def _data(tables: list[Trends]) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of data; one at a time, because together they are large."""
    for name, content in _contents(tables):
        # Strict JSON in ASCII, in a script that hands it to the page.
        text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        yield f"{DATA}/{name}.js", f'dashboard.receive("{name}",{text});\n'.encode("ascii")


def _contents(tables: list[Trends]) -> Iterator[tuple[str, Any]]:
    entries = []
    for trends in tables:
        rows = rows_of(trends.trends)
        entries += figures.row_entries(trends, rows)
        for number, row in enumerate(rows):
            yield f"{trends.table}-{number}", {trend.watched.column: figures.trend_data(trend) for trend in row}
    yield (
        "catalogue",
        {
            "summary": figures.summary(tables),
            "filters": MAIN_AXES,
            "tables": {trends.table: _table(trends) for trends in tables},
            "rows": entries,
        },
    )


def _table(trends: Trends) -> dict[str, Any]:
    return {
        "title": figures.TITLES.get(trends.table, trends.table),
        "runs": figures.run_data(trends),
        "metrics": figures.metric_data(trends),
    }
