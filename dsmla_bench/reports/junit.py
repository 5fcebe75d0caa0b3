"""JUnit XML: test cases with an outcome, as CI systems read them. Pure, to text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

Outcome = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class TestCase:
    """One test case: ``kind``, ``message`` and ``details`` say why it did not pass, ``seconds`` how long that took."""

    __test__ = False  # no test of pytest's

    classname: str
    name: str
    outcome: Outcome = "passed"
    kind: str = ""
    message: str = ""
    seconds: float | None = None
    details: str = ""


def junit_text(suite: str, cases: Sequence[TestCase]) -> str:
    """The document of one suite; characters that XML 1.0 cannot hold are left out."""
    outcomes = Counter(case.outcome for case in cases)
    root = ElementTree.Element("testsuites")
    element = ElementTree.SubElement(
        root,
        "testsuite",
        name=_xml(suite),
        tests=str(len(cases)),
        failures=str(outcomes["failure"]),
        errors=str(outcomes["error"]),
        skipped=str(outcomes["skipped"]),
    )
    for case in cases:
        made = ElementTree.SubElement(element, "testcase", classname=_xml(case.classname), name=_xml(case.name))
        if case.seconds is not None:
            made.set("time", f"{case.seconds:.12f}")
        if case.outcome != "passed":
            reason = ElementTree.SubElement(made, case.outcome, type=_xml(case.kind), message=_xml(case.message))
            reason.text = _xml(case.details) or None
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    return "".join(character for character in text if character in "\t\n" or ord(character) >= 32)
