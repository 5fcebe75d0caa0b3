"""The table of reported faults in README.md is complete, names tests that exist, and every case has a planted fault."""

import ast
import functools
import re
from pathlib import Path

import pytest
from planted_faults import LIST

TESTS = Path(__file__).parent
NUMBERS = {
    "A": (1, 2, 4, 5, 9, 11, 13, 14, 15, 18),
    "B": (1, 3, 5, 6, 9, 11),
    "C": (2, 5, 7, 8, 10, 11),
    "D": (1, 3, 5, 6, 8, 12),
}
"""Not consecutive: reports that came to the same fault were put together."""
CASES = [f"{letter}{number}" for letter, numbers in NUMBERS.items() for number in numbers]
NAMED = re.compile(r"\bCases? ([A-D]\d+(?: and [A-D]\d+)*)")


def table() -> dict[str, list[str]]:
    """Case → the tests that the table names for it."""
    lines = (TESTS / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if re.match(r"\| [A-D]\d+ \|", line)]
    return {cells[0].removeprefix("| "): re.findall(r"`([^`]+::[^`]+)`", cells[2]) for cells in rows}


@functools.cache
def functions_of(file: str) -> dict[str, str]:
    """Name → docstring of every test of a file."""
    functions = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    return {f.name: ast.get_docstring(f) or "" for f in functions if isinstance(f, ast.FunctionDef)}


def test_every_case_has_a_line():
    assert list(table()) == CASES


@pytest.mark.parametrize(("case", "tests"), table().items(), ids=table())
def test_the_tests_of_a_case_exist(case, tests):
    assert tests
    for test in tests:
        file, name = test.split("::")
        assert name in functions_of(file), f"{file} has no {name}"


def test_every_test_that_speaks_of_a_case_is_in_its_line():
    lines = table()
    for file in sorted(path.name for path in TESTS.glob("test_*.py")):
        for name, docstring in functions_of(file).items():
            for case in " and ".join(NAMED.findall(docstring)).split(" and "):
                assert not case or f"{file}::{name}" in lines[case], f"README.md does not name {name} for {case}"


def test_every_case_has_a_planted_fault_that_a_test_of_its_line_finds():
    lines, planted = (
        table(),
        re.findall(r'\[\[case\]\]\nid = "(\w+)"(?:\n.*){2}\ntest = "(.*)"', LIST.read_text("utf-8")),
    )
    assert {case for case, _ in planted} == set(CASES)
    for case, test in planted:
        assert test in lines[case]
