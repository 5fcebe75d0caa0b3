"""The list of planted faults is current: every fault has its place, another text in it, and tests that exist."""

from pathlib import Path

import pytest
from planted_faults import faults

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("fault", list(faults()), ids=lambda fault: fault.name)
def test_a_planted_fault_changes_one_place(fault):
    assert (ROOT / fault.path).read_text(encoding="utf-8").count(fault.right) == 1
    assert fault.right != fault.wrong
    for test in fault.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (Path(__file__).parent / file).read_text(encoding="utf-8")
