"""Writes the dashboard's folder from a history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dsmla_bench.history import History
from dsmla_bench.history_rows import HistoryError
from dsmla_bench.reports.dashboard import figures
from dsmla_bench.reports.trend_frame import Trends, read_trends, rows_of
from dsmla_bench.reports.trend_names import MAIN_AXES

DATA = "dashboard-data"


def write_dashboard(history: History, out: Path, since: str | None = None) -> Path:
    """Write the site of ``history`` into the folder ``out``, from the month ``since`` ("2026-11") on; its index.html.

    Files of an earlier site are replaced, other files are left alone. Raises HistoryError when the history cannot be
    read or holds nothing, or the folder cannot be written.
    """
    tables = read_trends(history, since)
    try:
        _write_pages(out)
        _write_data(out / DATA, _data(tables))
    except OSError as error:
        raise HistoryError(
            f"{out}: cannot write the dashboard here ({error.strerror}); name a writable folder"
        ) from error
    return out / "index.html"


def _write_pages(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for page in (resources.files(__package__) / "pages").iterdir():
        (out / page.name).write_bytes(page.read_bytes())
    (out / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")


def _data(tables: list[Trends]) -> Iterator[tuple[str, Any]]:
    """Name and content of every file of data; one at a time, because together they are large."""
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


def _write_data(folder: Path, data: Iterator[tuple[str, Any]]) -> None:
    """A script per name that hands its content to the page, as strict JSON in ASCII; earlier ones are removed."""
    folder.mkdir(exist_ok=True)
    for stale in folder.glob("*.js"):
        stale.unlink()
    for name, content in data:
        text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        (folder / f"{name}.js").write_text(f'dashboard.receive("{name}",{text});\n', encoding="ascii")
