"""What a worker's parent makes of a child that breaks the protocol, cannot start, or is gone between two questions."""

from pathlib import Path

import pytest
from builders import case
from processes import import_path

from dsmla_bench.bench.sweep import with_gate
from dsmla_bench.bench.worker import ALLOWED_FAILED_STARTS, Worker, WorkerConfig
from dsmla_bench.bench.workers import Workers
from dsmla_bench.rows import Measurement


@pytest.fixture(autouse=True)
def _tests_importable_by_workers(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", import_path(Path(__file__).parent))


@pytest.fixture
def worker():
    made = Worker(WorkerConfig("unruly_bench:UnrulyBench", case_timeout_s=20))
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("garbage", "the worker process gave no measurement but 'Hello'"),
        ("another", "the worker process answered another case than it was asked"),
        ("impostor", "the worker process answered another case than it was asked"),
        ("quiet", "the worker process died (exit code 7); it said nothing"),
    ],
)
def test_a_broken_protocol_costs_its_row_and_the_next_case_finds_a_fresh_process(worker, does, reason):
    found = worker.measure(case(provider=does))
    assert (found.case, found.status, found.reason) == (case(provider=does), "runtime_error", reason)
    assert worker.measure(case()).status == "ok"


def test_what_a_library_prints_is_no_answer(worker):
    assert worker.measure(case(provider="loud")).status == "ok"
    assert worker.measure(case()).status == "ok"


def test_a_child_that_went_after_its_answer_costs_the_next_row_only(worker):
    assert worker.measure(case(provider="leave")).status == "ok"
    worker._process.wait(timeout=20)
    lost = worker.measure(case())
    assert (lost.status, lost.reason) == (
        "runtime_error",
        "the worker process died before this case; it said nothing",
    )
    assert worker.measure(case()).status == "ok"


def test_a_bench_that_cannot_start_is_tried_twice_and_then_its_reason_stands_at_once(monkeypatch):
    spawn, spawned = Worker._spawn, []
    monkeypatch.setattr(Worker, "_spawn", lambda worker: (spawned.append(worker), spawn(worker)))
    worker = Worker(WorkerConfig("no_such_module:Bench"))
    found = [worker.measure(case(tokens=tokens)) for tokens in range(1, ALLOWED_FAILED_STARTS + 2)]
    assert {measured.status for measured in found} == {"runtime_error"}
    assert all("No module named 'no_such_module'" in measured.reason for measured in found)
    assert len(spawned) == ALLOWED_FAILED_STARTS


def test_workers_of_a_device_have_the_next_process_ready_and_none_that_is_done():
    workers = Workers(WorkerConfig("unruly_bench:UnrulyBench"), processes=3)
    alive = []
    for process in range(3):
        assert workers.measure(case(), process).process == process
        alive.append(sorted(workers._alive))
    assert alive == [[0, 1], [1, 2], [2]]
    workers.close()
    assert workers._alive == {}


@pytest.mark.parametrize(
    ("status", "ends_as"), [("ok", "compiled"), ("incorrect", "incorrect"), ("timeout", "timeout")]
)
def test_a_compiled_kernel_is_what_the_interpreter_found_of_its_bytes(status, ends_as):
    compiled = Measurement(case(), 0, "compiled", "no device", facts={"registers": 40, "seed": 1})
    gated = Measurement(case(), 0, status, "1 byte differs", facts={"bytes_differing": 1, "seed": 2})
    found = with_gate(compiled, gated)
    assert found.status == ends_as
    assert found.reason == ("no device" if status == "ok" else "1 byte differs")
    assert found.facts == {"registers": 40, "bytes_differing": 1, "seed": 2}
