"""The paired runs of an H200 in examples/ab: the same code twice, and 1/32 of extra work on one side."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsmla_bench.cli import app

ROOT = Path(__file__).parents[1]


def compared(name, *options):
    sides = [str(ROOT / "examples" / "ab" / name / side) for side in ("base", "head")]
    return CliRunner().invoke(app, ["compare", *sides, *options])


@pytest.mark.parametrize(
    ("name", "code", "counts"), [("unchanged", 0, {"same": 90, "unresolved": 6}), ("planted", 1, {"slow": 4})]
)
def test_the_same_code_twice_has_nothing_slow_or_fast_and_a_planted_slow_down_is_found(name, code, counts):
    done = compared(name, "--json")
    assert done.exit_code == code
    assert json.loads(done.stdout)["counts"] == counts


def test_the_page_shows_what_the_planted_runs_give():
    table = compared("planted").stdout.partition("\n\nchange:")[0]
    assert f"```\n{table}\n```" in (ROOT / "docs" / "compare.md").read_text("utf-8")
