"""A report as GitHub-flavoured Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from dsmla_bench.reports.page import Document
from dsmla_bench.reports.renderings import escape_markdown, table_markdown, to_markdown
from dsmla_bench.reports.sections import Pictures, Section


def report_markdown(document: Document) -> str:
    """The whole report; its pictures are the PNG files beside it."""
    parts = ["# dsmla-bench report", *_summary(document)]
    for section in document.sections:
        parts += _section(section)
    return "\n\n".join(filter(None, parts)) + "\n"


def _summary(document: Document) -> Iterator[str]:
    yield "## Summary"
    yield "\n".join(f"- {escape_markdown(f'{title}: {outcome}')}" for title, outcome in document.outcomes)
    if document.summary is not None:
        yield table_markdown(document.summary)
    yield "\n".join(f"- {escape_markdown(note)}" for note in document.notes)
    yield from _pictures(document.pictures)


def _section(section: Section) -> Iterator[str]:
    yield f"## {escape_markdown(section.title)}"
    headlines = [tables.headline for tables in section.tables.values() if tables.headline]
    yield from (f"**{escape_markdown(headline)}**" for headline in headlines)
    yield "\n".join(f"- {escape_markdown(fact)}" for fact in section.facts)
    yield from _pictures(section.pictures)
    for heading, tables in section.tables.items():
        yield f"## {heading}" if heading else ""
        yield to_markdown(dataclasses.replace(tables, headline="")).rstrip()
    if section.data:
        yield f"In full precision: {', '.join(f'{name}.csv' for name in section.data)}."


def _pictures(pictures: Pictures) -> Iterator[str]:
    for name, figure in pictures.items():
        if isinstance(figure, str):
            yield f"{name} is left out: {escape_markdown(figure)}."
        else:
            yield f"![{escape_markdown(str(figure.get_label()))}]({name}.png)"
