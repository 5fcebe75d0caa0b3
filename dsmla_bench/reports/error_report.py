"""What a report says of an error run: its section, and the tables that commands print.

errors.csv         every figure of every format, source and part, full precision; also attention.csv and readers.csv
worst_tiles.csv    the worst tiles with what went in and what came out
magnitude          error against magnitude
sigma              error against sigma, where several were measured
bytes              error against bytes per token
tiles              how the error of tiles is distributed
"""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from dsmla_bench.reports.error_plots import bytes_figure, magnitude_figure, sigma_figure, tiles_figure
from dsmla_bench.reports.error_tables import error_tables
from dsmla_bench.reports.run_facts import default_revisions, run_facts
from dsmla_bench.reports.sections import Section, drawn
from dsmla_bench.reports.tables import KernelTables, counts
from dsmla_bench.results import Run

CSV_TABLES = ("errors", "attention", "readers", "worst_tiles")


def is_error_run(run: Run) -> bool:
    """Whether the run was made by ``dsmla-bench error``."""
    return run.manifest.get("kind") == "error"


def tables_of(run: Run) -> KernelTables:
    """The tables of an error run. Raises RunError when it has no errors.parquet."""
    optional = {name: run.table(name) if run.has_table(name) else None for name in ("attention", "readers")}
    return error_tables(run.table("errors"), **optional, default_revisions=default_revisions(run))


def error_section(run: Run) -> Section:
    """The section of an error run. Raises RunError when it has no errors.parquet."""
    tables = tables_of(run)
    variants = run.table("errors").drop_duplicates("variant")
    return Section(
        title="Quantization error",
        outcome=tables.headline,
        facts=run_facts(run, counts(variants)),
        tables={"": tables},
        pictures=drawn(_figures(run)),
        data={name: run.table(name) for name in CSV_TABLES if run.has_table(name)},
    )


def _figures(run: Run) -> dict[str, Callable[[], Figure]]:
    errors, revisions = run.table("errors"), default_revisions(run)
    return {
        "magnitude": lambda: magnitude_figure(errors, run.table("buckets"), revisions),
        "sigma": lambda: sigma_figure(errors, revisions),
        "bytes": lambda: bytes_figure(errors, revisions),
        "tiles": lambda: tiles_figure(errors, run.table("tiles"), revisions),
    }
