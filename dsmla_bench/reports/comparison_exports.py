"""A comparison for machines: JSON, JUnit XML, annotations of GitHub Actions. One pure function each, to text.

Nothing is rounded. JSON is strict: an undefined or unbounded figure is null, never NaN or Infinity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from dsmla_bench.reports.comparison import Comparison
from dsmla_bench.reports.comparison_tables import headline, outcome
from dsmla_bench.reports.judged import FAILING, UNSETTLED, Judged
from dsmla_bench.reports.junit import Outcome, TestCase, junit_text
from dsmla_bench.reports.plain_data import finite

MOST_ANNOTATIONS = 10
"""GitHub shows so many of one level for a step, and drops the rest without a word."""


def to_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data for JSON, with ``regression``: whether the exit code is 1."""
    plain = finite(dataclasses.asdict(comparison))
    return {"regression": bool(comparison.findings), "counts": comparison.counts, **plain}


def to_junit(comparison: Comparison) -> str:
    """JUnit XML: a test case per figure; slow, incorrect and worse fail, what is not settled or missing is skipped."""
    runs = f"base {comparison.base}, head {comparison.head}"
    missing = [TestCase("missing", row, "skipped", "missing", "missing in head") for row in comparison.missing]
    return junit_text("dsmla-bench compare", [*(_test_case(found, runs) for found in comparison.judged), *missing])


def _test_case(found: Judged, runs: str) -> TestCase:
    result: Outcome = "failure" if found.verdict in FAILING else "skipped" if found.verdict in UNSETTLED else "passed"
    return TestCase(found.metric, found.subject, result, found.verdict, outcome(found), details=runs)


def to_annotations(comparison: Comparison) -> str:
    """Workflow commands of GitHub Actions: errors on findings, warnings on missing rows, a notice that sums up."""
    findings, missing = comparison.findings, comparison.missing
    lines = [_command("error", found.subject, outcome(found)) for found in findings[:MOST_ANNOTATIONS]]
    lines += [_command("warning", "missing in head", row) for row in missing[:MOST_ANNOTATIONS]]
    more = f" (annotations show the first {MOST_ANNOTATIONS})" if len(findings) > MOST_ANNOTATIONS else ""
    return "\n".join([*lines, _command("notice", "dsmla-bench compare", headline(comparison) + more)]) + "\n"


def _command(level: str, title: str, message: str) -> str:
    """``::level title=…::message`` with GitHub's escapes, which properties need more of than messages."""
    return f"::{level} title={_escaped(title, ('%', ':', ',', *_BREAKS))}::{_escaped(message, ('%', *_BREAKS))}"


_BREAKS = ("\r", "\n")


def _escaped(text: str, characters: Iterable[str]) -> str:
    for character in characters:  # "%" comes first, or the escapes of the others would be escaped too
        text = text.replace(character, f"%{ord(character):02X}")
    return text
