"""The section of any run, by what it measured; a new kind of run is a function and an entry in ``SECTIONS``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from dsmla_bench.reports.accuracy_plots import forest_figure, format_styles, kl_bytes_figure
from dsmla_bench.reports.accuracy_report import judged_of, tables_of
from dsmla_bench.reports.comparability import ERROR, KERNELS, kind_of
from dsmla_bench.reports.comparison import Comparison
from dsmla_bench.reports.comparison_tables import comparison_tables
from dsmla_bench.reports.error_report import error_section
from dsmla_bench.reports.judged import Judged
from dsmla_bench.reports.kernel_report import kernel_section
from dsmla_bench.reports.run_facts import run_facts
from dsmla_bench.reports.sections import Section, drawn
from dsmla_bench.reports.tables import counts
from dsmla_bench.results import Run, RunError, typed_frame

ACCURACY = "accuracy"
ACCURACY_TABLES = ("scores", "fidelity", "latents")


def section_of(run: Run) -> Section:
    """What a report says of the run. Raises RunError when its kind is unknown or it lacks its tables."""
    if kind_of(run) not in SECTIONS:
        raise RunError(f"{run.path}: no report of a run of kind {kind_of(run)!r}; of {', '.join(SECTIONS)} there is")
    return SECTIONS[kind_of(run)](run)


def accuracy_section(run: Run) -> Section:
    """The section of an accuracy run. Raises RunError when it has no judged.parquet."""
    judged, tables = judged_of(run), tables_of(run)
    figures = {"forest": functools.partial(forest_figure, judged, format_styles(judged))}
    data = {"judged": judged.assign(notes=judged["notes"].map(" ".join))}
    if run.has_table("fidelity"):
        fidelity = run.table("fidelity")
        whole, styles = fidelity[fidelity["bucket"] == "all"], format_styles(judged, fidelity)
        figures["kl_bytes"] = functools.partial(kl_bytes_figure, whole, styles)
    return Section(
        title="Task accuracy",
        outcome=tables.headline,
        facts=run_facts(run, counts(run.table("variants"))),
        tables={"": tables},
        pictures=drawn(figures),
        data=data | {name: run.table(name) for name in ACCURACY_TABLES if run.has_table(name)},
    )


def comparison_section(comparison: Comparison) -> Section:
    """The section of two runs that were measured in turns."""
    tables = comparison_tables(comparison)
    return Section(
        title="Comparison",
        outcome=tables.headline,
        facts=(),
        tables={"": tables},
        data={"comparison": typed_frame(Judged, comparison.judged)},
    )


SECTIONS: Mapping[str, Callable[[Run], Section]] = {
    KERNELS: kernel_section,
    ERROR: error_section,
    ACCURACY: accuracy_section,
}
