"""A comparison for machines: JSON, JUnit XML, annotations of GitHub Actions. One pure function each, to text.

Nothing is rounded. JSON is strict: an undefined or unbounded figure is null, never NaN or Infinity.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

from dsmla_bench.reports.comparison import Comparison
from dsmla_bench.reports.comparison_tables import headline, outcome
from dsmla_bench.reports.judged import FAILING, UNSETTLED

MOST_ANNOTATIONS = 10
"""GitHub shows so many of one level for a step, and drops the rest without a word."""


def to_document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data for JSON, with ``regression``: whether the exit code is 1."""
    plain = _finite(dataclasses.asdict(comparison))
    return {"regression": bool(comparison.findings), "counts": comparison.counts, **plain}


def to_junit(comparison: Comparison) -> str:
    """JUnit XML: a test case per figure; slow, incorrect and worse fail, what is not settled or missing is skipped."""
    skipped = [found for found in comparison.judged if found.verdict in UNSETTLED]
    suite = ElementTree.Element(
        "testsuite",
        name="dsmla-bench compare",
        tests=str(len(comparison.judged) + len(comparison.missing)),
        failures=str(len(comparison.findings)),
        errors="0",
        skipped=str(len(skipped) + len(comparison.missing)),
    )
    for found in comparison.judged:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(found.metric), name=_xml(found.subject))
        if found.verdict in FAILING:
            failure = ElementTree.SubElement(case, "failure", type=found.verdict, message=_xml(outcome(found)))
            failure.text = f"base {comparison.base}, head {comparison.head}"
        elif found.verdict in UNSETTLED:
            ElementTree.SubElement(case, "skipped", message=_xml(outcome(found)))
    for row in comparison.missing:
        case = ElementTree.SubElement(suite, "testcase", classname="missing", name=_xml(row))
        ElementTree.SubElement(case, "skipped", message="missing in head")
    document = ElementTree.Element("testsuites")
    document.append(suite)
    ElementTree.indent(document)
    return ElementTree.tostring(document, encoding="unicode", xml_declaration=True) + "\n"


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


def _xml(text: str) -> str:
    """``text`` without the control characters that XML 1.0 cannot hold."""
    return "".join(character for character in text if character in "\t\n" or ord(character) >= 32)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
