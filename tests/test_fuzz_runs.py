"""Damaged and hostile run folders and histories: each is read, or refused in one sentence."""

import json
import warnings

import pandas as pd
import pytest
from builders import case, compiled_sweep, refused, run_of, timed
from fuzzing import answered, answered_by_the_command, as_json, damaged, damaged_bytes, fuzz, garbage, values
from hypothesis import given
from hypothesis import strategies as st

from dsmla_bench.evals.error import execute
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.history import History
from dsmla_bench.reports.comparison import compare
from dsmla_bench.reports.comparison_exports import to_document
from dsmla_bench.reports.comparison_tables import comparison_tables
from dsmla_bench.reports.error_report import tables_of
from dsmla_bench.reports.findings import findings_of
from dsmla_bench.reports.kernel_report import run_tables
from dsmla_bench.reports.renderings import to_markdown, to_text
from dsmla_bench.reports.trend_frame import read_trends
from dsmla_bench.results import Run
from dsmla_bench.rows import Measurement

MEASUREMENTS = [
    timed(case(), [5.0, 5.1], sm_mhz=1980.0),
    timed(case(), 5.2, process=1, registers=40),
    timed(case("gather", heads=16, variant="indexer"), 9.0),
    refused(case("write", "bf16"), "incorrect", "17 bytes differ", bytes_compared=100, bytes_differing=17),
    compiled_sweep()[0],
]
LINES = [json.loads(measurement.to_json()) for measurement in MEASUREMENTS]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run; tests write over its files and put them back."""
    return run_of(tmp_path_factory.mktemp("runs"), MEASUREMENTS, config={"processes": 2, "seed": 0})


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("others"), MEASUREMENTS, config={"processes": 2, "seed": 0})


def read_whole(path, other):
    """What reads a run: its rows, their tables, and comparisons both ways."""
    with warnings.catch_warnings(), answered():
        warnings.simplefilter("ignore")
        found = Run.load(path)
        found.samples().to_parquet()
        tables = run_tables(found, found.rows())
        assert to_text(tables) + to_markdown(tables)
        for pair in ((found, other), (other, found)):
            comparison = compare(*pair, force=True)
            assert to_text(comparison_tables(comparison))
            assert to_document(comparison)


def with_file(folder, name, data, read):
    """``read()`` while the file holds ``data``."""
    file = folder / name
    whole = file.read_bytes()
    file.write_bytes(data)
    try:
        read()
    finally:
        file.write_bytes(whole)


# Lines


@fuzz(200)
@given(line=damaged(LINES[0]) | damaged(LINES[3]) | values)
def test_a_line_is_a_measurement_or_none(line):
    with answered():
        found = Measurement.from_json(as_json(line).decode())
        assert Measurement.from_json(found.to_json()) == found


@fuzz(20)
@given(lines=damaged(LINES))
def test_rows_of_wrong_values(run, other, lines):
    data = b"".join(as_json(line) + b"\n" for line in lines)
    with_file(run.path, "rows.jsonl", data, lambda: read_whole(run.path, other))


@fuzz(40)
@given(data=damaged_bytes(b"".join(as_json(line) + b"\n" for line in LINES)) | garbage)
def test_rows_of_damaged_bytes(run, data):
    def load():
        with warnings.catch_warnings(), answered():
            warnings.simplefilter("ignore")
            Run.load(run.path).rows()

    with_file(run.path, "rows.jsonl", data, load)


# Manifests


@fuzz(15)
@given(data=st.data())
def test_a_manifest_of_wrong_values(run, other, data):
    manifest = data.draw(damaged(run.manifest) | values)
    with_file(run.path, "manifest.json", as_json(manifest), lambda: read_whole(run.path, other))


@fuzz(25)
@given(data=st.data())
def test_a_manifest_of_damaged_bytes(run, other, data):
    content = data.draw(damaged_bytes((run.path / "manifest.json").read_bytes()) | garbage)
    with_file(run.path, "manifest.json", content, lambda: read_whole(run.path, other))


# Tables


def as_parquet(frame):
    """A frame's bytes; none where it cannot be a table, as with a column of objects of several types."""
    try:
        return frame.to_parquet(index=False)
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        return b""


@st.composite
def damaged_frame(draw, frame):
    """The frame with a column left out, renamed, or of other values."""
    name = draw(st.sampled_from(list(frame.columns)))
    how = draw(st.sampled_from(["leave out", "rename", "null", "number", "text", "double rows", "no rows"]))
    odd = {"null": None, "number": draw(st.floats()), "text": draw(st.sampled_from(["", "x" * 3000, "試験"]))}
    if how in odd:
        return frame.assign(**{name: odd[how]})
    rows = {"double rows": [*frame.index, *frame.index], "no rows": []}.get(how, frame.index)
    changed = frame.loc[rows].reset_index(drop=True)
    if how == "leave out":
        return changed.drop(columns=[name])
    return changed.rename(columns={name: f"{name}?"}) if how == "rename" else changed


@fuzz(12)
@given(data=st.data())
def test_a_file_of_a_history(run, tmp_path_factory, data):
    """One that cannot be used is set aside with a warning; the others are read."""
    store = History(str(tmp_path_factory.mktemp("store")))
    (path,) = store.add(run).files
    rows = pd.read_parquet(path)
    content = data.draw(damaged_frame(rows).map(as_parquet) | damaged_bytes(as_parquet(rows)) | garbage)
    with open(path, "wb") as file:
        file.write(content)
    with warnings.catch_warnings(), answered():
        warnings.simplefilter("ignore")
        store.runs()
        findings_of(read_trends(store))


@pytest.fixture(scope="module")
def error_run(tmp_path_factory):
    """A small error run with every table."""
    plan = ErrorPlan(formats=("bf16", "nvfp4_ds_mla"), sigmas=(1.0,), tokens=64, attention=True, readers=True)
    found = plan.create_run(tmp_path_factory.mktemp("error"))
    list(execute(plan, found))
    return Run.load(found.path)


@fuzz(25)
@given(data=st.data())
def test_a_table_of_an_error_run(error_run, data):
    name = data.draw(st.sampled_from(sorted(file.stem for file in error_run.path.glob("*.parquet"))))
    table = error_run.table(name)
    content = data.draw(damaged_frame(table).map(as_parquet) | damaged_bytes(as_parquet(table)) | garbage)

    def read():
        with warnings.catch_warnings(), answered_by_the_command():
            warnings.simplefilter("ignore")
            to_text(tables_of(Run.load(error_run.path)))

    with_file(error_run.path, f"{name}.parquet", content, read)
