"""The store of many runs: what is kept, what a crash or a broken file costs, many writers, and the commands."""

import json
import multiprocessing
import os
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pytest
from builders import MANIFEST, case, refused, run_of, timed
from fsspec.implementations.memory import MemoryFileSystem
from histories import add_series, cases_for, generated_run, noisy_figures, step, timed_rows
from typer.testing import CliRunner

from dsmla_bench.cli import app
from dsmla_bench.history import History, Part
from dsmla_bench.history_rows import HistoryError
from dsmla_bench.places import PlaceError, files_below
from dsmla_bench.reports.trend_frame import read_trends
from dsmla_bench.reports.trend_names import title_of
from dsmla_bench.results import Run, RunError


@pytest.fixture
def store(tmp_path):
    return History(str(tmp_path / "store"))


@pytest.fixture
def run(tmp_path):
    """Two timed rows and one that was skipped."""
    found = [timed(case(), 8.5), timed(case(tokens=8192), 9.5), refused(case(provider="vllm"), "skipped", "no vllm")]
    return run_of(tmp_path / "runs", found, git={"commit": "c0ffee", "dirty": False}, tool_version="0.1.0", seed=0)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def files_of(store):
    return files_below(store._root)


# What is kept


def test_a_run_is_read_back_as_its_rows_and_who_measured_what_where(store, run):
    assert store.add(run).rows == 3
    frame = store.frame()
    assert frame["row_id"].tolist() == run.rows()["row_id"].tolist()
    assert frame["us"].tolist()[:2] == [8.5, 9.5]
    assert frame["us"].dtype == "float64"
    assert frame.loc[2, ["status", "reason"]].tolist() == ["skipped", "no vllm"]
    said = frame.loc[0, ["run_id", "commit", "device", "device_uuid", "driver", "tool_version", "seed"]].tolist()
    assert said == [run.run_id, "c0ffee", "NVIDIA H200", "GPU-0", "580.159", "0.1.0", 0]
    assert frame.loc[0, "started_at"] == datetime.fromisoformat(run.manifest["started_at"])


def test_files_are_hive_partitions_that_any_reader_of_parquet_understands(store, run, tmp_path):
    (file,) = store.add(run).files
    month = f"{datetime.now(UTC):%Y-%m}"
    assert f"/store/table=rows/gpu=nvidia-h200/month={month}/uuid=gpu-0/{run.run_id}-" in file
    filters = [("table", "==", "rows"), ("month", ">=", "2026-10")]
    assert len(pd.read_parquet(tmp_path / "store", filters=filters)) == 3
    table = ds.dataset(str(tmp_path / "store"), partitioning="hive").to_table()
    assert table.to_pandas()[["table", "gpu", "month", "us"]].iloc[0].tolist() == ["rows", "nvidia-h200", month, 8.5]


def test_adding_a_run_again_changes_nothing(store, run):
    first, second = store.add(run), store.add(run)
    assert (first.new, second.new) == (1, 0)
    assert (second.files, len(store.frame())) == (first.files, 3)


def test_of_a_resumed_run_the_later_state_is_read(store):
    for number in range(8):
        store.add(generated_run(number, timed_rows(cases_for(2), [2.0, 3.0]), ended_at="2026-11-30T05:00:00+00:00"))
        store.add(
            generated_run(number, timed_rows(cases_for(3), [2.0, 4.0, 5.0]), ended_at="2026-11-30T06:00:00+00:00")
        )
        store.add(generated_run(number, timed_rows(cases_for(1), [2.0]), ended_at=None))
    assert len(files_of(store)) == 24
    assert store.frame()["us"].tolist() == [2.0, 4.0, 5.0] * 8


def test_a_series_is_one_row_on_one_device_by_one_version_of_the_benchmark(store):
    rows = timed_rows(cases_for(2), [2.0, 3.0])
    device = MANIFEST["device"]
    for number, change in enumerate(
        [
            {},
            {},
            {"device": {**device, "uuid": "GPU-1"}},
            {"tool_version": "0.2.0"},
            {"device": {**device, "driver": "585"}},
        ]
    ):
        store.add(generated_run(number, rows, **change))
    sizes = store.frame().groupby("series", observed=True).size()
    assert sorted(sizes) == [1, 1, 1, 1, 3, 3]


def test_rows_of_several_gpus_keep_their_own(store):
    rows = timed_rows(cases_for(2), [2.0, 3.0]).assign(device=["NVIDIA H200", "NVIDIA B200"], device_uuid=["a", "b"])
    added = store.add(generated_run(0, rows))
    assert [file.split("/gpu=")[1].split("/")[0] for file in added.files] == ["nvidia-b200", "nvidia-h200"]
    assert set(map(tuple, store.frame()[["device", "device_uuid"]].to_numpy())) == {
        ("NVIDIA H200", "a"),
        ("NVIDIA B200", "b"),
    }


def test_rows_of_a_cluster_have_the_driver_of_their_own_node(store, tmp_path):
    devices = [{**MANIFEST["device"], "uuid": f"GPU-{number}", "driver": f"580.{number}"} for number in range(2)]
    rows = [timed(case(tokens=number + 1), 5.0, device_uuid=f"GPU-{number}") for number in range(2)]
    store.add(run_of(tmp_path, rows, device=devices[0], devices=devices))
    assert store.frame().set_index("device_uuid")["driver"].to_dict() == {"GPU-0": "580.0", "GPU-1": "580.1"}


def test_errors_are_kept_beside_rows_with_a_key_of_their_axes(store, tmp_path):
    errors = pd.DataFrame({"format": ["fp8"] * 2, "part": ["NoPE", "RoPE"], "sigma": 1.0, "rel_l2": [0.02, 0.03]})
    run = Run.create(tmp_path, {**MANIFEST, "kind": "error", "seed": 3})
    run.write_table("errors", errors.assign(status="ok"))
    run.finish()
    assert store.add(Run.load(run.path)).rows == 2
    frame = store.frame("errors")
    assert (frame["rel_l2"].tolist(), frame["row_id"].nunique(), len(store.frame("rows"))) == ([0.02, 0.03], 2, 0)


def test_a_row_of_another_gpu_does_not_get_the_uuid_of_the_first(store):
    rows = timed_rows(cases_for(2), [2.0, 3.0]).assign(device=["NVIDIA H200", "NVIDIA B200"])
    store.add(generated_run(0, rows))
    kept = store.frame().set_index("device")[["device_uuid", "driver"]]
    assert kept.loc["NVIDIA H200"].tolist() == ["GPU-0", "580.159"]
    assert kept.loc["NVIDIA B200"].isna().all()


def test_task_scores_that_are_shares_are_kept_as_accuracy_with_their_interval(store, tmp_path):
    score = {"format": "fp8", "task": "gsm8k", "filter": "strict", "metric": "exact_match", "documents": 1319}
    accuracy = {**score, "score": 0.95, "stderr": 0.006, "higher_is_better": True, "bounded": True}
    perplexity = {**score, "metric": "ppl", "score": 5.2, "stderr": 0.1, "higher_is_better": False, "bounded": False}
    run = Run.create(tmp_path, {**MANIFEST, "kind": "accuracy", "config": {"model": "embedded", "backend": "sim"}})
    run.write_table("scores", pd.DataFrame([accuracy, perplexity]))
    run.finish()
    store.add(Run.load(run.path))
    (kept,) = store.frame("scores").to_dict("records")
    assert (kept["accuracy"], kept["accuracy_lo"]) == (0.95, pytest.approx(0.95 - 1.96 * 0.006))
    assert (kept["model"], kept["task"], kept["status"]) == ("embedded", "gsm8k", "ok")
    (trends,) = read_trends(store)
    (trend,) = trends.trends
    assert (trend.watched.metric.label, trend.figures.tolist(), title_of(trend.axes)) == (
        "accuracy",
        [0.95],
        "gsm8k fp8",
    )


def test_names_beyond_ascii_come_back_as_they_were(store, run):
    run.manifest["device"] = {"name": "H200 – Prüfstand 试验 µs"}
    run.measurements[:] = [timed(case(), 8.0, device=None)]
    (file,) = store.add(run).files
    assert "/gpu=h200-pr-fstand-s/" in file
    assert store.frame()["device"].tolist() == ["H200 – Prüfstand 试验 µs"]


@pytest.mark.parametrize("run_id", ["../../outside", "", "a b", ".hidden"])
def test_a_run_cannot_name_a_file_outside_the_store(store, run_id):
    with pytest.raises(HistoryError, match="cannot name a file"):
        store.add(generated_run(0, timed_rows([case()], [8.0]), run_id=run_id))
    assert files_of(store) == []


def test_a_run_that_does_not_say_when_it_started_is_refused(store):
    with pytest.raises(HistoryError, match="no start time in its manifest"):
        store.add(generated_run(0, timed_rows([case()], [8.0]), started_at="yesterday"))


def test_a_run_without_rows_is_refused(store, tmp_path):
    with pytest.raises(HistoryError, match="has no row to keep; add a run of"):
        store.add(run_of(tmp_path / "runs", []))


# Broken files, crashes, many writers


def write_broken_files(good):
    """Files beside ``good`` that are no files of a history, each for another reason; their names."""
    frame, whole = pd.read_parquet(good), good.read_bytes()
    frames = {
        "0-text-for-us": frame.assign(us="fast"),
        "0-text-for-time": frame.assign(started_at="yesterday"),
        "0-lists": frame.assign(us=[[8.0]] * len(frame)),
        "0-no-history": frame[["us"]],
        "0-no-time": frame.assign(started_at=frame["started_at"].where(frame["us"] > 9)),
    }
    for name, broken in frames.items():
        broken.to_parquet(good.with_name(f"{name}.parquet"))
    contents = {
        "cut": whole[:-100],
        "empty": b"",
        "no-parquet": b"PAR1 rows of yore",
        "zeros": whole[:200] + bytes(999),
    }
    for name, content in contents.items():
        good.with_name(f"{name}.parquet").write_bytes(content)
    return [*frames, *contents]


def test_a_broken_file_is_set_aside_by_name_and_left_where_it_is(store, run):
    (url,) = store.add(run).files
    good = Path(url)
    names = write_broken_files(good)
    with pytest.warns(UserWarning, match="set aside") as caught:
        frame = store.frame()
    assert len(frame) == 3
    messages = "\n".join(str(warning.message) for warning in caught)
    said = re.findall(r"/([\w-]+)\.parquet: set aside, it is no file of a history", messages)
    assert sorted(said) == sorted(names)
    assert len(list(good.parent.iterdir())) == len(names) + 1


def test_a_write_that_breaks_off_leaves_nothing_to_read_and_says_so(store, run, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        with pytest.raises(HistoryError, match=r"cannot be written .*No space left.* add it again"):
            store.add(run)
    assert len(store.frame()) == 0
    assert store.add(run).new == 1
    assert len(store.frame()) == 3


def add_some(url, writer):
    for number in range(5):
        History(url).add(generated_run(writer * 5 + number, timed_rows(cases_for(10), [float(writer + 1)] * 10)))


def test_eight_writers_at_once_lose_nothing(store):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_some, args=(store.url, writer)) for writer in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    frame = store.frame()
    assert [writer.exitcode for writer in writers] == [0] * 8
    assert (len(frame), frame["run_id"].nunique()) == (400, 40)
    assert frame.groupby("us").size().tolist() == [50] * 8


def test_any_fsspec_url_is_a_store_and_what_was_acknowledged_survives_a_failing_network(run, monkeypatch):
    url = f"memory://{uuid.uuid4()}"
    put = MemoryFileSystem.pipe_file
    calls = []

    def flaky(self, path, *arguments, **options):
        calls.append(path)
        if len(calls) % 2 == 0:
            raise ConnectionError("connection reset by peer")
        return put(self, path, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", flaky)
    acknowledged = []
    for number in range(0, 10, 2):
        acknowledged += History(url).add(generated_run(number, timed_rows([case()], [8.0]))).files
        with pytest.raises(HistoryError, match="connection reset by peer"):
            History(url).add(generated_run(number + 1, timed_rows([case()], [8.0])))
    assert len(acknowledged) == len(History(url).frame()) == 5


@pytest.mark.parametrize("url", ["s4://bucket/history", "gopher://x", "github://x", "a://b", "://x", "..://x"])
@pytest.mark.filterwarnings("error")
def test_an_unknown_protocol_is_one_clear_sentence(url):
    with pytest.raises(PlaceError, match="cannot be opened"):
        History(url)


@pytest.mark.parametrize(
    ("gpu", "uuids"),
    [
        ("NVIDIA H200", ["GPU-00aa", "GPU-00bb"]),
        ("nvidia-h", ["GPU-00aa", "GPU-00bb"]),
        ("GPU-00bb", ["GPU-00bb"]),
        ("GPU-00c", ["GPU-00cc"]),
        ("NVIDIA", ["GPU-00aa", "GPU-00bb", "GPU-00cc"]),
        ("GPU-01", []),
    ],
)
def test_a_model_or_a_uuid_or_how_it_begins_names_the_gpus_that_are_read(store, gpu, uuids):
    rows = timed_rows([case()], [2.0])
    for name, own in (("NVIDIA H200", "GPU-00aa"), ("NVIDIA H200", "GPU-00bb"), ("NVIDIA B200", "GPU-00cc")):
        store.add(generated_run(0, rows.assign(device=name), device={**MANIFEST["device"], "name": name, "uuid": own}))
    assert sorted(store.frame(part=Part(gpu=gpu))["device_uuid"]) == uuids


def test_files_of_other_gpus_are_not_read(store):
    for number in range(2):
        rows = timed_rows([case()], [2.0])
        added = store.add(generated_run(number, rows, device={**MANIFEST["device"], "uuid": f"GPU-{number}"}))
    Path(*added.files).write_bytes(b"would be set aside if it were read")
    assert store.frame(part=Part(gpu="GPU-0"))["device_uuid"].tolist() == ["GPU-0"]


def test_months_before_the_one_asked_for_are_not_read(store):
    add_series(store.url, [8.0] * 40)
    january = next(path for path in files_of(store) if "month=2024-01" in str(path))
    january.write_bytes(b"would be set aside if it were read")
    assert store.frame(part=Part(since="2024-02"))["started_at"].dt.month.unique().tolist() == [2]


# The commands


def test_add_says_what_it_did_and_takes_the_commit_that_was_measured(store, run):
    done = invoke("history", "add", run.path, "--store", store.url, "--commit", "abc123")
    assert (done.exit_code, done.output) == (0, f"{run.run_id}: 3 rows in {store.url}\n")
    assert store.frame()["commit"].unique().tolist() == ["abc123"]
    again = invoke("history", "add", run.path, "--store", store.url, "--commit", "abc123")
    assert "which has it already" in again.output


def test_list_shows_the_newest_runs(store):
    add_series(store.url, [8.0, 8.1, 8.2])
    done = invoke("history", "list", "--store", store.url, "--last", 2)
    newest = ["20240102T030000-000001", "20240103T030000-000002"]
    assert [line.split()[2] for line in done.output.splitlines()] == newest
    (run,) = json.loads(invoke("history", "list", "--store", store.url, "--last", 1, "--json").output)
    assert (run["run_id"], run["driver"]) == (newest[-1], "580.159")


@pytest.mark.parametrize(("size", "code", "last"), [(0.06, 1, "1 worse"), (0.0, 0, "0 worse"), (-0.4, 0, "0 worse")])
def test_check_fails_on_a_confirmed_regression_only(store, size, code, last):
    add_series(store.url, noisy_figures(np.random.default_rng(0), step(25, 19, size)))
    done = invoke("history", "check", "--store", store.url)
    assert (done.exit_code, done.output.splitlines()[-1]) == (code, f"1 row: {last}, 0 unusual")
    assert ("git bisect start" in done.output) == bool(code)
    found = json.loads(invoke("history", "check", "--store", store.url, "--json").output)
    assert [finding["kind"] for finding in found] == ["regression"] * code


@pytest.mark.parametrize(("runs", "settled"), [(1, False), (5, False), (6, True)])
def test_check_says_where_there_is_too_little_to_compare(store, runs, settled):
    add_series(store.url, [8.0] * runs)
    done = invoke("history", "check", "--store", store.url)
    assert done.exit_code == 0
    assert done.output == (
        "1 row: 0 worse, 0 unusual\n"
        if settled
        else "Nothing settled: 1 row, all with too few figures to compare; a change shows in 6 runs of a time, in 2 of "
        "what repeats exactly\n"
    )


def test_check_and_list_look_at_the_gpu_that_is_named(store):
    add_series(store.url, noisy_figures(np.random.default_rng(0), step(25, 19, 0.06)))
    steady = {**MANIFEST["device"], "uuid": "GPU-1"}
    add_series(store.url, noisy_figures(np.random.default_rng(1), step(25, 19, 0.0)), device=steady)
    assert [invoke("history", "check", "--store", store.url, "--gpu", gpu).exit_code for gpu in ("GPU-0", "GPU-1")] == [
        1,
        0,
    ]
    listed = invoke("history", "list", "--store", store.url, "--gpu", "GPU-1", "--last", 30, "--json")
    assert {run["device_uuid"] for run in json.loads(listed.output)} == {"GPU-1"}
    nothing = invoke("history", "check", "--store", store.url, "--gpu", "GPU-2", "--since", "2024-01").exception
    assert "holds no run with a figure of GPU-2 since 2024-01; add one" in str(nothing)


def test_check_of_an_empty_store_is_a_mistake_not_a_pass(store):
    done = invoke("history", "check", "--store", store.url)
    assert isinstance(done.exception, HistoryError)
    assert "holds no run with a figure" in str(done.exception)


def test_a_folder_that_is_no_run_cannot_be_added(store, tmp_path):
    assert isinstance(invoke("history", "add", tmp_path, "--store", store.url).exception, RunError)
