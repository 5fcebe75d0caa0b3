"""Damaged and hostile input for the tests called test_fuzz: what it is made of, and what counts as an answer to it.

Examples are derandomized, so that a run of the tests repeats the one before. To look further, raise ``max_examples``.

A table with columns of other names or types, and task YAML, meet pandas and lm-eval first, whose errors are of any
kind; there, what counts is that the command ends in one sentence (``answered_by_the_command``).
"""

import contextlib
import copy
import json
import resource
import traceback
from datetime import timedelta
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

import dsmla_bench
from dsmla_bench.cli.mistakes import MOST_CHARACTERS, sentence
from dsmla_bench.cli.settings import Settings

PACKAGE = str(Path(dsmla_bench.__file__).parent)
MOST_BYTES = 256 * 2**20
HARMLESS = {hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow}


def fuzz(examples):
    """Settings of a fuzz test; an example that takes longer than half a minute hangs."""
    return hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=timedelta(seconds=30),
        suppress_health_check=HARMLESS,
    )


ODD_TEXTS = [
    "",
    "\0",
    "\ud800",
    "../../elsewhere",
    "<script>alert(1)</script>",
    "a|b\n| - |\x1b[31m",
    "9999-12-31T23:59:59+14:00",
    "ok",
    "x" * 3000,
]
ODD_NUMBERS = [0, -1, True, 2**31, 2**63 - 1, 2**63, 10**400, 0.0, -0.0, 5e-324, 1e308, float("nan"), float("-inf")]
scalars = (
    st.none() | st.sampled_from(ODD_NUMBERS) | st.sampled_from(ODD_TEXTS) | st.integers() | st.floats() | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=5
)
"""Anything that JSON can hold, and what Python's reader takes beside it."""
garbage = st.binary(max_size=300) | st.sampled_from(
    [b"[" * 200_000, b'{"a":' * 200_000, b"1" * 10_000, b"\xff\xfe", b"\0" * 1000, b"{} {}", b'"' + b"a" * 200_000]
)
"""Bytes that are no document at all: nested beyond all bounds, numbers of too many digits, binary."""


@st.composite
def damaged(draw, document):
    """The document, of dicts, lists and scalars, with one or two values replaced, left out, renamed or doubled."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        inside = list(_places(document))
        if not inside:
            break
        parent, key = draw(st.sampled_from(inside))
        how = draw(st.sampled_from(["alike", "alike", "replace", "leave out", "rename", "double"]))
        if how == "alike":
            parent[key] = draw(_like(parent[key]))
        elif how == "leave out":
            del parent[key]
        elif how == "rename" and isinstance(parent, dict):
            parent[draw(st.sampled_from(ODD_TEXTS))] = parent.pop(key)
        elif how == "double" and isinstance(parent, list):
            parent.append(parent[key])
        else:
            parent[key] = draw(values)
    return document


def _like(value):
    """Odd values of the same type, which get past a check of types."""
    if isinstance(value, str):
        return st.sampled_from(ODD_TEXTS) | st.text()
    if isinstance(value, (int, float)):
        return st.sampled_from([number for number in ODD_NUMBERS if type(number) is type(value)])
    return values


def _places(document):
    """Every (container, key) of a document."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


@st.composite
def damaged_bytes(draw, data):
    """A file's bytes cut short, with some of them overwritten, doubled, or with garbage between."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 200)))
    return draw(
        st.sampled_from([data[:start], data[:start] + data[end:], data[:end] + data[start:]])
        | st.builds(lambda between: data[:start] + between + data[end:], garbage)
    )


def as_json(document):
    """A document as bytes of JSON, lone surrogates escaped, NaN and infinities as Python writes them."""
    return json.dumps(document).encode()


@contextlib.contextmanager
def answered():
    """What runs inside ends well or raises one sentence of the project's own, in bounded memory."""
    before = _peak_bytes()
    try:
        yield
    except ValueError as error:
        _assert_our_own(error)
        _assert_sentence(sentence(error, Settings()))
    assert _peak_bytes() - before <= MOST_BYTES


@contextlib.contextmanager
def answered_by_the_command():
    """As ``answered``, where the code of other libraries meets the input: the command makes the sentence."""
    before = _peak_bytes()
    try:
        yield
    except Exception as error:
        _assert_sentence(sentence(error, Settings()))
    assert _peak_bytes() - before <= MOST_BYTES


def _assert_our_own(error):
    """The project raised the error itself, as a ValueError or one of its own, and not a library that it called."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    assert innermost.filename.startswith(PACKAGE), f"an error of a library's own: {error!r:.200} at {innermost}"
    assert type(error) is ValueError or type(error).__module__.startswith("dsmla_bench"), repr(error)
    assert "\n" not in str(error), error


def _assert_sentence(text):
    assert 0 < len(text) <= MOST_CHARACTERS
    assert "\n" not in text, text


def _peak_bytes():
    """The most memory that this process ever had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
