"""The report folder of an error run: tables, pictures and the numbers behind them.

    report.md          what ran where, pictures, tables
    errors.csv         every figure of every format, source and part, full precision; also attention.csv and readers.csv
    worst_tiles.csv    the worst tiles with what went in and what came out
    magnitude.png      error against magnitude
    sigma.png          error against sigma, where several were measured
    bytes.png          error against bytes per token
    tiles.png          how the error of tiles is distributed

Made from the run's manifest and tables alone, without torch.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.error_plots import bytes_figure, magnitude_figure, sigma_figure, tiles_figure
from dsmla_bench.reports.error_tables import error_tables
from dsmla_bench.reports.plots import save
from dsmla_bench.reports.renderings import escape_markdown, to_csv, to_markdown
from dsmla_bench.reports.report import default_revisions, run_facts
from dsmla_bench.reports.tables import KernelTables
from dsmla_bench.results import Run, RunError

CSV_TABLES = ("errors", "attention", "readers", "worst_tiles")
PICTURES = ("magnitude.png", "sigma.png", "bytes.png", "tiles.png")


def is_error_run(run: Run) -> bool:
    """Whether the run was made by ``dsmla-bench error``."""
    return run.manifest.get("kind") == "error"


def tables_of(run: Run) -> KernelTables:
    """The tables of an error run. Raises RunError when it has no errors.parquet."""
    optional = {name: run.table(name) if run.has_table(name) else None for name in ("attention", "readers")}
    return error_tables(run.table("errors"), **optional, default_revisions=default_revisions(run))


def write_error_report(run: Run, out: Path | None = None) -> list[Path]:
    """Write the report of an error run into ``out`` (``report`` in its folder by default); the files, report.md first.

    A picture that there is nothing to draw for is left out, and report.md says why. Raises RunError when the run has no
    errors or the folder cannot be written.
    """
    out = run.path / "report" if out is None else Path(out)
    tables = tables_of(run)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = [_write(out / f"{name}.csv", to_csv(run.table(name))) for name in CSV_TABLES if run.has_table(name)]
        lines = []
        for name in PICTURES:
            try:
                figure = _figure(run, name)
            except NothingToPlotError as reason:
                lines.append(f"{name} is left out: {escape_markdown(str(reason))}.")
            else:
                written.append(save(figure, out / name))
                lines.append(f"![{figure.get_label()}]({name})")
        return [_write(out / "report.md", _markdown(run, tables, lines)), *written]
    except OSError as error:
        raise RunError(f"{out}: cannot write the report here ({error.strerror}); name a writable folder") from error


def _figure(run: Run, name: str) -> Figure:
    errors, revisions = run.table("errors"), default_revisions(run)
    if name == "magnitude.png":
        return magnitude_figure(errors, run.table("buckets"), revisions)
    if name == "tiles.png":
        return tiles_figure(errors, run.table("tiles"), revisions)
    return (sigma_figure if name == "sigma.png" else bytes_figure)(errors, revisions)


def _markdown(run: Run, tables: KernelTables, pictures: list[str]) -> str:
    facts = run_facts(run, _statuses(run))
    parts = [
        "# Quantization error",
        "\n".join(f"- {escape_markdown(fact)}" for fact in facts),
        *pictures,
        "## Tables",
        to_markdown(tables).rstrip(),
        "errors.csv has every figure in full precision.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _statuses(run: Run) -> pd.DataFrame:
    """One row per variant, for counting."""
    return run.table("errors").drop_duplicates("variant")


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
