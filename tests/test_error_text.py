"""An exception in one line, whatever its message looks like."""

import pytest

from dsmla_bench.error_text import LONGEST, first_line, typed_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("no space left", "no space left"),
        ("no space left.", "no space left"),
        ("\n  undefined symbol: f\nwhile loading\n", "undefined symbol: f"),
        ("x" * 1000, "x" * LONGEST),
    ],
)
def test_a_message_is_quoted_by_its_first_line_without_a_full_stop(message, line):
    assert first_line(OSError(message)) == line
    assert typed_line(OSError(message)) == f"OSError: {line}"


@pytest.mark.parametrize("message", ["", " \n ", "..."])
def test_an_error_that_says_nothing_is_named_by_its_type(message):
    assert first_line(RuntimeError(message)) == typed_line(RuntimeError(message)) == "RuntimeError"
