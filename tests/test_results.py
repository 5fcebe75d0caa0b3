"""Runs on disk: what is written is what is read, whatever happened in between."""

import json

import pandas as pd
import pytest
from builders import MANIFEST, case, compiled_sweep, h200_sweep, refused, run_of, timed

from dsmla_bench.results import SCHEMA_VERSION, Run, RunError, latest_run, rows_frame
from dsmla_bench.summary import summarise

LABEL = "H200 – Prüfstand 试验 µs"


def test_a_run_reads_back_as_it_was_written(tmp_path):
    run = Run.create(tmp_path, MANIFEST)
    for measurement in h200_sweep():
        run.append(measurement)
    run.finish(note=LABEL)
    again = Run.load(run.path)
    assert again.measurements == run.measurements
    assert again.manifest == run.manifest
    assert again.manifest["note"] == LABEL
    assert again.manifest["ended_at"] > again.manifest["started_at"]
    pd.testing.assert_frame_equal(again.rows(), run.rows())


@pytest.mark.parametrize("measurements", [h200_sweep(), compiled_sweep(), []], ids=["timed", "compiled", "empty"])
def test_parquet_reads_back_equal_dtypes_included(tmp_path, measurements):
    run = run_of(tmp_path, measurements)
    pd.testing.assert_frame_equal(pd.read_parquet(run.path / "rows.parquet"), run.rows())
    pd.testing.assert_frame_equal(pd.read_parquet(run.path / "samples.parquet"), run.samples())


def test_an_empty_run_has_the_schema_of_a_full_one(tmp_path):
    empty, full = Run.create(tmp_path, {}), run_of(tmp_path, h200_sweep())
    pd.testing.assert_series_equal(empty.rows().dtypes, full.rows().dtypes)
    pd.testing.assert_series_equal(empty.samples().dtypes, full.samples().dtypes)
    assert len(empty.rows()) == len(empty.samples()) == 0


def test_integers_beside_undefined_ones_keep_all_their_bits():
    rows = [summarise([timed(case(tokens=1), 5.0, seed=2**60 + 1)]), summarise([timed(case(tokens=2), 5.0)])]
    assert rows_frame(rows)["seed"].tolist() == [2**60 + 1, pd.NA]


def test_processes_of_a_case_share_a_row_and_samples_keep_their_order(tmp_path):
    run = run_of(tmp_path, [timed(case(), [3.0, 1.0], 0), timed(case(tokens=1), 9.0), timed(case(), [2.0], 1)])
    assert run.rows()["us"].tolist() == [2.0, 9.0]
    samples = run.samples()
    assert samples.loc[samples["row_id"] == case().row_id, ["process", "order", "us"]].values.tolist() == [
        [0, 0, 3.0],
        [0, 1, 1.0],
        [1, 0, 2.0],
    ]


def test_records_are_plain_json_with_null_for_undefined(tmp_path):
    run = run_of(tmp_path, [timed(case(), 1.0), refused(case(provider="vllm"), "skipped", LABEL)])
    first, second = json.loads(json.dumps(run.records(), allow_nan=False))
    assert (first["us"], first["reason"], first["bound_share"]) == (1.0, None, None)
    assert (second["us"], second["reason"]) == (None, LABEL)


@pytest.mark.parametrize("cut", [40, -1, -2])
def test_a_last_line_cut_short_is_set_aside_with_file_and_line(tmp_path, cut):
    run = run_of(tmp_path, [timed(case(tokens=tokens), 5.0, device=LABEL) for tokens in (1, 2, 3)])
    file = run.path / "rows.jsonl"
    *kept, last = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([*kept, last[:cut]]))
    with pytest.warns(UserWarning, match=r"rows\.jsonl:3: the last line is cut short and was set aside"):
        again = Run.load(run.path)
    assert again.rows()["tokens"].tolist() == [1, 2]


def test_a_last_line_that_lacks_its_end_alone_is_kept_when_the_run_is_resumed(tmp_path):
    run = Run.create(tmp_path, {})
    for tokens in (1, 2):
        run.append(timed(case(tokens=tokens), 9.0))
    run.finish()
    file = run.path / "rows.jsonl"
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    resumed = Run.resume(run.path, {})
    assert resumed.measurements == run.measurements
    resumed.append(timed(case(tokens=4), 9.0))
    assert Run.load(run.path).measurements == resumed.measurements


def test_a_line_cut_inside_a_character_is_set_aside_too(tmp_path):
    run = run_of(tmp_path, [timed(case(), 5.0), refused(case(tokens=1), "skipped", "é")])
    file = run.path / "rows.jsonl"
    file.write_bytes(file.read_bytes().split("é".encode())[0] + b"\xc3")
    with pytest.warns(UserWarning, match=r"rows\.jsonl:2"):
        assert len(Run.load(run.path).measurements) == 1


@pytest.mark.parametrize("content", [b"", b"PAR1 but not more", None], ids=["empty", "text", "cut"])
def test_a_damaged_table_of_rows_is_named_and_the_rows_come_from_the_measurements(tmp_path, content):
    run = run_of(tmp_path, [timed(case(), 5.0)])
    file = run.path / "rows.parquet"
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    with pytest.warns(UserWarning, match=r"rows\.parquet: cannot be read as a table .*; its rows are taken from rows"):
        again = Run.load(run.path)
    assert again.rows()["us"].tolist() == [5.0]
    file.unlink()
    with pytest.warns(UserWarning, match=r"has no rows\.parquet; it holds samples\.parquet; its rows are taken from"):
        Run.load(run.path)


def test_damage_before_the_last_line_is_refused_with_file_and_line(tmp_path):
    run = run_of(tmp_path, [timed(case(tokens=tokens), 5.0) for tokens in (1, 2)])
    file = run.path / "rows.jsonl"
    file.write_bytes(b"\xff{" + file.read_bytes()[5:])
    with pytest.raises(RunError, match=r"rows\.jsonl:1: "):
        Run.load(run.path)


def test_an_unfinished_run_can_be_read(tmp_path):
    run = Run.create(tmp_path, MANIFEST)
    run.append(timed(case(), 5.0))
    assert Run.load(run.path).rows()["us"].tolist() == [5.0]
    assert "ended_at" not in Run.load(run.path).manifest


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, None, "1"])
def test_another_schema_version_is_refused(tmp_path, version):
    run = Run.create(tmp_path, {"schema_version": version})
    with pytest.raises(RunError, match=rf"manifest\.json: schema version {version!r}, this dsmla-bench reads 1; use "):
        Run.load(run.path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "cannot be read"), ("[]", "schema version None"), ("", "cannot be")]
)
def test_a_damaged_manifest_is_refused_in_words(tmp_path, text, message):
    run = Run.create(tmp_path, {})
    (run.path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=message):
        Run.load(run.path)


def test_what_is_no_run_says_so(tmp_path):
    with pytest.raises(RunError, match=r"not a run \(no manifest\.json\)"):
        Run.load(tmp_path / "nowhere")
    with pytest.raises(RunError, match="holds no run; measure one with"):
        latest_run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot create a run here"):
        Run.create(tmp_path / "file", {})
    run = Run.create(tmp_path, {})
    (run.path / "rows.jsonl").unlink()
    with pytest.raises(RunError, match=r"rows\.jsonl: cannot be read"):
        Run.load(run.path)


@pytest.mark.parametrize("ended_at", [None, "2999-01-01T00:00:00+00:00"], ids=["new", "resumed"])
def test_a_run_ends_after_it_began_and_ended_before_whatever_the_clock_was_set_back_to(tmp_path, ended_at):
    """A history tells the later of two states of a run by when it ended."""
    run = Run.create(tmp_path, {"started_at": "2998-12-31T23:59:59+00:00", "ended_at": ended_at})
    ends = [ended_at or run.manifest["started_at"]]
    for _ in range(2):
        run.finish()
        ends.append(run.manifest["ended_at"])
    assert ends[0] < ends[1] < ends[2]


@pytest.mark.parametrize("known", ["no time", "2999-01-01T00:00:00", "9999-12-31T23:59:59.999999+00:00", 7])
def test_a_manifest_that_has_no_time_to_end_after_is_finished_all_the_same(tmp_path, known):
    run = Run.create(tmp_path, {"started_at": known})
    run.finish()
    assert run.manifest["ended_at"].startswith("20")


def test_runs_never_share_a_folder_and_the_latest_is_found(tmp_path):
    runs = [Run.create(tmp_path, {}) for _ in range(20)]
    assert len({run.path for run in runs}) == 20
    assert latest_run(tmp_path) == max(run.path for run in runs)


def test_what_another_process_appended_until_the_run_was_held_is_there(tmp_path, monkeypatch):
    run = Run.create(tmp_path, {})
    run.append(timed(case(tokens=1), 5.0))
    load = Run.load

    def then_the_other_goes_on(path):
        loaded = load(path)
        run.append(timed(case(tokens=2), 5.0))
        run.finish()
        return loaded

    monkeypatch.setattr(Run, "load", then_the_other_goes_on)
    assert [m.case.tokens for m in Run.resume(run.path, {}).measurements] == [1, 2]
