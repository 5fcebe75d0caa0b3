"""The report folder of one or more runs: a page, Markdown, tables, pictures and the numbers behind them.

    index.html     everything on one page that needs neither a network nor JavaScript: summary first, then every run
    report.md      the same as Markdown
    *.csv          the rows and tables behind it, full precision
    *.png, *.svg   every picture, twice
    pareto         what formats trade, where the runs say what a format takes in bytes, time and error

Two runs that were measured in turns (``dsmla-bench ab``) are also compared; the one named first is the base. Files of a
second run of a kind have a number: us-2.png. All is made from manifests and tables alone, in UTF-8, and can be made
again at any time. None of the files is called as one of a run's own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from dsmla_bench.places import Place, Where, failing_as, place, write_whole
from dsmla_bench.reports.comparison import compare
from dsmla_bench.reports.measures import comparison_measure
from dsmla_bench.reports.page import Document, to_html
from dsmla_bench.reports.pareto_plot import pareto_figure
from dsmla_bench.reports.plots import picture
from dsmla_bench.reports.renderings import to_csv
from dsmla_bench.reports.report_markdown import report_markdown
from dsmla_bench.reports.run_sections import comparison_section, section_of
from dsmla_bench.reports.sections import Section, drawn
from dsmla_bench.reports.summary_table import all_revisions, measures_of, summary_notes, summary_table
from dsmla_bench.reports.timed_changes import are_paired
from dsmla_bench.results import Run, RunError

SUFFIXES = ("png", "svg")


def write_report(runs: Run | Sequence[Run], out: Where | None = None) -> list[Place]:
    """Write the report of ``runs`` into the folder or URL ``out``; the files written, index.html and report.md first.

    ``out`` is ``report`` in the first run's folder by default. A picture that there is nothing to draw for is left out,
    and the page says why. Raises RunError when the runs have no row, one lacks its tables, or ``out`` is not writable.
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    folder = runs[0].path / "report" if out is None else place(out)
    written = []
    for name, content in _files(document_of(runs)):
        with failing_as(RunError, folder, "cannot write the report here", "name a writable folder"):
            write_whole(folder / name, content)  # a link of that name is replaced, not followed
        written.append(folder / name)
    return written


def _files(document: Document) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of a report."""
    yield "index.html", to_html(document).encode("utf-8")
    yield "report.md", report_markdown(document).encode("utf-8")
    for section in document.sections:
        for name, frame in section.data.items():
            yield f"{name}.csv", to_csv(frame).encode("utf-8")
    pictures = [document.pictures, *(section.pictures for section in document.sections)]
    figures = {name: figure for found in pictures for name, figure in found.items() if isinstance(figure, Figure)}
    for name, figure in figures.items():
        for kind in SUFFIXES:
            yield f"{name}.{kind}", picture(figure, kind)


def document_of(runs: Sequence[Run]) -> Document:
    """What the report says, before it is laid out. Raises RunError when a run lacks its tables."""
    sections = list(_told_apart(runs, [section_of(run) for run in runs]))
    measures, comparisons = measures_of(runs), []
    for base, head in _pairs(runs):
        comparison = compare(base, head)
        measures.append(comparison_measure(comparison, head, all_revisions(runs)))
        comparisons.append(comparison_section(comparison))
    pareto = drawn({"pareto": functools.partial(pareto_figure, measures)})
    return Document(
        summary=summary_table(measures),
        notes=tuple(summary_notes(measures)),
        pictures={name: figure for name, figure in pareto.items() if isinstance(figure, Figure)},
        sections=tuple(_with_names([*comparisons, *sections])),
    )


def _pairs(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """The runs that were measured in turns, base first."""
    yield from (pair for pair in itertools.combinations(runs, 2) if are_paired(*pair))


def _told_apart(runs: Sequence[Run], sections: Sequence[Section]) -> Iterator[Section]:
    """The sections of the runs, those of one title with the run's id behind it."""
    titles = Counter(section.title for section in sections)
    for run, section in zip(runs, sections, strict=True):
        several = titles[section.title] > 1
        yield dataclasses.replace(section, title=f"{section.title} ({run.run_id})") if several else section


def _with_names(sections: Sequence[Section]) -> Iterator[Section]:
    """The sections with a number behind names of files that an earlier one has."""
    taken: set[str] = set()
    for section in sections:
        names = {*section.pictures, *section.data}
        number = next(n for n in itertools.count(1) if not taken & {_numbered(name, n) for name in names})
        taken |= {_numbered(name, number) for name in names}
        yield dataclasses.replace(
            section,
            pictures={_numbered(name, number): figure for name, figure in section.pictures.items()},
            data={_numbered(name, number): frame for name, frame in section.data.items()},
        )


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
