"""The summary that opens a report: what every format costs, a column per format and a line per figure."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from dsmla_bench.reports.comparability import ERROR, KERNELS, kind_of
from dsmla_bench.reports.measures import (
    Measure,
    accuracy_measures,
    bytes_measure,
    error_measures,
    kernel_measures,
)
from dsmla_bench.reports.run_facts import default_revisions
from dsmla_bench.reports.run_sections import ACCURACY
from dsmla_bench.reports.tables import UNDEFINED, Column, Table, notes_on
from dsmla_bench.results import Run

MEASURES: Mapping[str, Callable[[Run, Mapping[str, str]], Iterator[Measure]]] = {
    KERNELS: kernel_measures,
    ERROR: error_measures,
    ACCURACY: accuracy_measures,
}
"""Kind of run → its lines of the summary, from the run and format → default revision."""


def measures_of(runs: Sequence[Run]) -> list[Measure]:
    """The measures of all runs, in their order; where several are of one kind, named by what tells them apart."""
    revisions = all_revisions(runs)
    found = []
    for run in runs:
        for measure in MEASURES[kind_of(run)](run, revisions):
            found.append(dataclasses.replace(measure, group=measure.group + _distinction(run, runs)))
    return _bytes_once(found)


def all_revisions(runs: Sequence[Run]) -> dict[str, str]:
    """Format → the revision that its bare name means, as the runs have it."""
    return {name: revision for run in runs for name, revision in default_revisions(run).items()}


def summary_table(measures: Sequence[Measure]) -> Table | None:
    """The measures as a table, formats by falling bytes; None where no run says anything of a format.

    Every group of measures has a line of its own above them, without figures.
    """
    formats = list(dict.fromkeys(name for measure in measures for name in measure.cells))
    size = next((measure.values for measure in measures if measure.subject == "bytes"), {})
    formats.sort(key=lambda name: (-size.get(name, 0.0), name))
    shown = [measure for measure in measures if set(measure.cells.values()) - {UNDEFINED}]
    if not shown:
        return None
    lines: list[Measure] = []
    for group, members in itertools.groupby(shown, key=lambda measure: measure.group):
        lines += [Measure(group, group, dict.fromkeys(formats, "")), *members]
    head = Column("", "", tuple(line.label for line in lines), numeric=False, key=True)
    columns = [Column("", name, tuple(line.cells.get(name, UNDEFINED) for line in lines)) for name in formats]
    return Table("What every format costs", (head, *columns))


def summary_notes(measures: Sequence[Measure]) -> list[str]:
    """What the figures of the table and their marks mean."""
    names = ["floor %"] if any(measure.label.endswith("floor %") for measure in measures) else []
    return notes_on(names, [cell for measure in measures for cell in measure.cells.values()])


def _distinction(run: Run, runs: Sequence[Run]) -> str:
    """What tells a run from others of its kind: its device where each has another, else its id; "" for the only one."""
    alike = [other for other in runs if kind_of(other) == kind_of(run)]
    if len(alike) == 1:
        return ""
    devices = [(other.manifest.get("device") or {}).get("name") for other in alike]
    own = (run.manifest.get("device") or {}).get("name")
    return f" on {own}" if None not in devices and len(set(devices)) == len(devices) else f" ({run.run_id})"


def _bytes_once(measures: Sequence[Measure]) -> list[Measure]:
    """The measures with those of bytes made one, which comes first, then how many more tokens fit into the memory."""
    sizes = [measure.values for measure in measures if measure.subject == "bytes"]
    others = [measure for measure in measures if measure.subject != "bytes"]
    values = {name: value for found in reversed(sizes) for name, value in found.items()}
    if not values:
        return others
    fit = {name: f"{max(values.values()) / value:.3g}×" for name, value in values.items()}
    size = bytes_measure({name: int(value) for name, value in values.items()})
    return [size, Measure("memory", "tokens that fit", fit), *others]
