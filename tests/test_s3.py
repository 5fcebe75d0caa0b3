"""Runs and histories in object storage: what is acknowledged is there, whatever becomes of network and process."""

import json
import multiprocessing
import os
import subprocess
import sys
import uuid

import pandas as pd
import pytest
from builders import MANIFEST, case, h200_sweep, timed
from histories import cases_for, generated_run, timed_rows
from processes import import_path
from s3_server import s3_server
from s3fs import S3FileSystem
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.history import History
from dsmla_bench.history_rows import HistoryError
from dsmla_bench.places import files_below, place, read
from dsmla_bench.results import Run, RunError, latest_run

WRITERS, RUNS, ROWS = 8, 5, 10


@pytest.fixture(scope="module")
def server():
    with s3_server() as started:
        yield started


@pytest.fixture
def bucket(server):
    S3FileSystem.clear_instance_cache()
    return server.bucket(f"bench-{uuid.uuid4()}")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def tokens_of(run):
    return [measurement.case.tokens for measurement in run.measurements]


def append_all(run, tokens):
    for number in tokens:
        run.append(timed(case(tokens=number), 5.0))


# A run


def test_a_run_reads_back_as_it_was_written_finished_or_not(bucket):
    run = Run.create(f"{bucket}/runs", MANIFEST)
    for measurement in h200_sweep():
        run.append(measurement)
    unfinished = Run.load(str(run.path))
    run.finish(note="µs")
    finished = Run.load(str(run.path))
    assert unfinished.measurements == finished.measurements == run.measurements
    assert finished.manifest["note"] == "µs"
    pd.testing.assert_frame_equal(finished.rows(), run.rows())
    assert pd.read_parquet(f"{run.path}/rows.parquet").equals(run.rows())
    assert str(latest_run(f"{bucket}/runs")) == str(run.path)


def test_a_finished_run_is_read_without_its_single_objects_and_goes_on_when_resumed(bucket):
    run = Run.create(bucket, {"config": {}})
    append_all(run, (1, 2))
    run.finish()
    resumed = Run.resume(str(run.path), {})
    append_all(resumed, (3,))
    assert tokens_of(Run.load(str(run.path))) == [1, 2, 3]
    for file in files_below(run.path / "rows")[:2]:
        file.unlink()
    assert tokens_of(Run.load(str(run.path))) == [1, 2, 3]


def test_a_second_process_that_measures_into_a_run_stops_and_costs_no_row(bucket):
    run = Run.create(bucket, {"config": {}})
    append_all(run, (1,))
    other = Run.resume(str(run.path), {})
    append_all(run, (2,))
    with pytest.raises(RunError, match="another process is measuring into this run"):
        append_all(other, (3,))
    assert tokens_of(Run.load(str(run.path))) == [1, 2]


@pytest.mark.parametrize(("fault", "kept"), [("cut", [1, 2]), ("no answer", [1, 2, 3])])
def test_a_network_that_fails_in_the_middle_of_a_row_loses_nothing_that_was_acknowledged(server, bucket, fault, kept):
    run = Run.create(bucket, {"config": {}})
    append_all(run, (1, 2))
    refusal = pytest.raises(RunError, match=r"cannot be written any more .*; its rows so far are kept")
    with server.failing(fault), refusal:
        append_all(run, (3,))
    assert tokens_of(Run.load(str(run.path))) == kept
    append_all(Run.resume(str(run.path), {}), (4,))
    assert tokens_of(Run.load(str(run.path))) == [*kept, 4]


def test_a_row_whose_receipt_got_lost_is_asked_about_again_and_is_not_taken_for_anothers(server, bucket, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    S3FileSystem.clear_instance_cache()
    run = Run.create(bucket, {"config": {}})
    with server.failing("no answer", times=1):
        append_all(run, (1, 2))
    assert tokens_of(Run.load(str(run.path))) == [1, 2]


MEASURE_FOR_EVER = """
import sys
from builders import case, timed
from dsmla_bench.results import Run
run = Run.create(sys.argv[1], {"config": {}})
print(run.path, flush=True)
for number in range(1, 10**6):
    run.append(timed(case(tokens=number), 5.0))
    print(number, flush=True)
"""


def test_a_killed_process_leaves_every_row_that_it_was_told_is_stored(bucket):
    command = [sys.executable, "-c", MEASURE_FOR_EVER, bucket]
    environment = {**os.environ, "PYTHONPATH": import_path(*sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        path = process.stdout.readline().strip()
        for line in process.stdout:
            if int(line) == 7:
                process.kill()
        acknowledged = max(7, int(line))
    kept = tokens_of(Run.load(path))
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= acknowledged


# A history


def add_some(url, writer):
    for number in range(RUNS):
        rows = timed_rows(cases_for(ROWS), [float(writer + 1)] * ROWS)
        History(url).add(generated_run(writer * RUNS + number, rows))


def test_eight_writers_of_fifty_rows_at_once_lose_nothing(bucket):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["histories", "s3fs"])
    writers = [context.Process(target=add_some, args=(f"{bucket}/history", writer)) for writer in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    frame = History(f"{bucket}/history").frame()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    assert (len(frame), frame["run_id"].nunique()) == (400, WRITERS * RUNS)
    assert frame.groupby("us").size().tolist() == [RUNS * ROWS] * WRITERS
    assert not frame[["series", "row_id", "us"]].isna().any(axis=None)


@pytest.mark.parametrize(("fault", "kept"), [("cut", 1), ("no answer", 2)])
def test_a_history_has_what_was_acknowledged_when_the_network_fails_in_the_middle(server, bucket, fault, kept):
    history, runs = History(bucket), [generated_run(number, timed_rows([case()], [8.0])) for number in range(2)]
    history.add(runs[0])
    refusal = pytest.raises(HistoryError, match=r"cannot be written .*, add it again")
    with server.failing(fault), refusal:
        history.add(runs[1])
    assert len(history.frame()) == kept
    history.add(runs[1])
    assert len(history.frame()) == 2


# The commands


def test_a_run_is_written_reported_compared_exported_and_kept_at_urls(bucket):
    done = invoke("error", "--formats", "bf16,fp8", "--sigma", "1", "--tokens", "64", "--out", f"{bucket}/runs")
    assert done.exit_code == 0, done.output
    run = done.output.splitlines()[-1].removeprefix("run: ")
    assert run.startswith(f"{bucket}/runs/")
    assert invoke("report", run).exit_code == 0
    assert read(place(run) / "report" / "index.html").startswith(b"<!DOCTYPE html>")
    assert invoke("compare", run, run).exit_code == 0
    assert json.loads(invoke("export", run, "--to", "json").output)["run_id"] in run
    assert invoke("history", "add", run, "--store", f"{bucket}/history").exit_code == 0
    assert invoke("history", "check", "--store", f"{bucket}/history").exit_code == 0
    done = invoke("dashboard", "--store", f"{bucket}/history", "--out", f"{bucket}/site")
    assert (done.exit_code, done.output) == (0, f"wrote {bucket}/site/index.html\n")


def test_a_sweep_into_a_bucket_is_resumed_from_there(bucket):
    options = ("--ops", "write", "--formats", "bf16", "--providers", "vllm", "--tokens", "1,2", "--processes", "1")
    done = invoke("kernels", "--arch", "sm90", *options, "--out", bucket)
    path = done.output.splitlines()[-1].removeprefix("run: ")
    assert Run.load(path).rows()["status"].tolist() == ["skipped"] * 4
    again = invoke("kernels", "--arch", "sm90", *options, "--resume", path, "--dry-run")
    assert "4 measurements are done, 0 are left" in again.output


# Mistakes


@pytest.mark.parametrize(
    "arguments",
    [("report", "{}/run"), ("history", "list", "--store", "{}/x"), ("history", "add", "{run}", "--store", "{}/x")],
)
def test_a_bucket_that_does_not_exist_is_one_sentence(bucket, tmp_path, arguments):
    known = Run.create(tmp_path, MANIFEST)
    append_all(known, (1,))
    known.finish()
    filled = [argument.format("s3://no-such-bucket", run=known.path) for argument in arguments]
    error = invoke(*filled).exception
    assert isinstance(error, ValueError)
    assert "s3://no-such-bucket" in str(error)
    assert "The specified bucket does not exist" in str(error)
    assert "\n" not in str(error)


def test_missing_credentials_are_one_sentence_that_says_what_to_set(bucket, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    S3FileSystem.clear_instance_cache()
    for arguments in (("report", f"{bucket}/run"), ("history", "list", "--store", bucket)):
        error = invoke(*arguments).exception
        assert isinstance(error, ValueError)
        assert "(Unable to locate credentials); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(error)
    with pytest.raises(RunError, match=r"cannot create a run here .*; set AWS_ACCESS_KEY_ID .*; name a writable place"):
        Run.create(bucket, {})


def test_without_the_extra_one_sentence_says_what_to_install():
    script = "import sys; sys.modules['s3fs'] = None; from dsmla_bench.cli import main; main()"
    command = [sys.executable, "-c", script, "history", "list", "--store", "s3://bucket/history"]
    done = subprocess.run(command, env={"PYTHONPATH": import_path()}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "s3://bucket/history: cannot be opened (Install s3fs to access S3)" in sentence
    assert "install 'dsmla-bench[s3]'" in sentence
