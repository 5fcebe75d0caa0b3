"""A worker's benches asked in this process, where what they do can be looked at.

``test_measuring.py`` asks the same of workers in processes of their own, which are killed when they are done with.
"""

import dataclasses
import io
import itertools
import json

import pytest
import torch
from builders import case
from fake_device import FakeBench

from dsmla_bench.bench.offline import InterpretBench
from dsmla_bench.bench.worker import READY, WorkerConfig, serve
from dsmla_bench.kernels.providers.triton import TritonProvider
from dsmla_bench.rows import Measurement

GATHER = case("gather", "fp8", tokens=3, requests=2, block_size=4)
WRITE = case("write", "bf16", tokens=3, block_size=4)


def ask(bench, *cases):
    """What ``serve`` answers to these cases."""
    questions = io.StringIO("".join(json.dumps(dataclasses.asdict(asked)) + "\n" for asked in cases))
    answers = io.StringIO()
    serve(bench, 2, questions, answers)
    ready, *lines = answers.getvalue().splitlines()
    assert ready == READY
    return [Measurement.from_json(line) for line in lines]


def fake_bench(tmp_path, **script):
    (tmp_path / "script.json").write_text(json.dumps(script))
    return FakeBench(WorkerConfig("fake", libraries={"script": str(tmp_path / "script.json")}, process=2))


def test_the_interpreters_bench_compares_every_byte_and_knows_a_case_again():
    bench = InterpretBench(WorkerConfig("interpret", process=2, seed=7))
    found = ask(bench, WRITE, GATHER, WRITE)
    assert [(m.case, m.process, m.status) for m in found] == [(c, 2, "ok") for c in (WRITE, GATHER, WRITE)]
    assert all(m.facts["bytes_differing"] == 0 < m.facts["bytes_compared"] for m in found)
    assert {m.facts["seed"] for m in found} == {7}
    assert len(bench._results) == 2, "a case that comes again, as for another architecture, is not interpreted again"


def test_a_wrong_byte_is_no_time(tmp_path, monkeypatch):
    """A kernel that flips a bit of what it wrote is incorrect by both benches; what it would have taken is not kept."""
    whole = TritonProvider.plan

    def plan(provider, operation, fmt, inputs, arch):
        launch = whole(provider, operation, fmt, inputs, arch)
        (output,) = operation.outputs(inputs).values()

        class Wrong:
            def run(self):
                launch.run()
                output.view(torch.uint8).view(-1)[0] ^= 1

            def __getattr__(self, name):
                return getattr(launch, name)

        return Wrong()

    monkeypatch.setattr(TritonProvider, "plan", plan)
    monkeypatch.setattr(TritonProvider, "bind", lambda *arguments: plan(*arguments[:4], arguments[4].number).run)
    for bench in (InterpretBench(WorkerConfig("interpret")), fake_bench(tmp_path)):
        (found,) = ask(bench, GATHER)
        assert (found.status, found.samples) == ("incorrect", {}), found.reason
        assert "1 of 3456 bytes" in found.reason


def misbehave(monkeypatch, in_call, change):
    """Let the kernels of ``triton`` do ``change(inputs)`` once they have run, in the calls numbered so."""
    whole, calls = TritonProvider.bind, itertools.count()

    def bind(provider, operation, fmt, inputs, arch):
        call = whole(provider, operation, fmt, inputs, arch)
        return lambda: (call(), next(calls) in in_call and change(inputs))

    monkeypatch.setattr(TritonProvider, "bind", bind)


def flip(tensor):
    first = tensor.view(torch.uint8)
    first[(0,) * first.dim()] ^= 1


def test_bytes_that_are_wrong_only_as_they_were_timed_are_no_time(tmp_path, monkeypatch):
    """The gate's call is the first, the device times the second, and the third is what it timed, done again."""
    misbehave(monkeypatch, in_call={2}, change=lambda inputs: flip(inputs.workspace))
    found, after = ask(fake_bench(tmp_path), GATHER, GATHER)
    assert (found.status, found.samples) == ("incorrect", {})
    assert found.reason.startswith("right when called, wrong as it was timed: 1 of 3456 bytes differ")
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (0, "it changed its input kv_c"),
        (1, "right when called, wrong as it was timed: 1 of 4608 bytes differ"),
        (2, "right when called, wrong as it was timed: it changed its input kv_c"),
    ],
)
def test_a_kernel_that_changes_its_input_is_incorrect_and_the_next_one_gets_what_it_should(
    tmp_path, monkeypatch, call, said
):
    """Its own bytes may well be right: what it spoils is its next launch's, or the next kernel's."""
    misbehave(monkeypatch, in_call={call}, change=lambda inputs: flip(inputs.kv_c))
    found, after = ask(fake_bench(tmp_path), WRITE, WRITE)
    assert (found.status, found.samples) == ("incorrect", {})
    assert found.reason.startswith(said)
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [("oom", "oom", "CUDA out of memory"), ("throttle", "throttled", "thermal (hardware), 1400 of 1980 MHz")],
)
def test_a_fault_of_one_case_leaves_the_next_one_whole(tmp_path, fault, status, said):
    bench = fake_bench(tmp_path, faults={"triton 3": fault}, times={"triton": 5.0})
    faulty, good = ask(bench, GATHER, dataclasses.replace(GATHER, tokens=4))
    assert (faulty.status, good.status) == (status, "ok")
    assert said in faulty.reason
    assert good.samples["activity"] == [5.0, pytest.approx(5.05), pytest.approx(4.95)]
    assert good.facts["first_call_us"] > 0


def test_a_runtime_error_ends_the_worker_with_one_sentence(tmp_path):
    bench = fake_bench(tmp_path, faults={"triton 3": "illegal"})
    (found,) = ask(bench, GATHER, WRITE)
    assert (found.status, found.reason) == (
        "runtime_error", "RuntimeError: CUDA error: an illegal memory access was encountered",
    )  # fmt: skip


def test_what_a_provider_cannot_serve_is_skipped_with_its_reason(tmp_path):
    (found,) = ask(fake_bench(tmp_path), case("write", "bf16", provider="vllm", tokens=1))
    assert found.status == "skipped"
    assert "vllm" in found.reason
