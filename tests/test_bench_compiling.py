"""Compiling where something is in the way: a worker that fails, a silent assembler, no disassembler, a full disk."""

import dataclasses
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from builders import case

from dsmla_bench.bench import compile as compiling
from dsmla_bench.bench import compile_ahead, cross_compile, static_facts
from dsmla_bench.bench.compile import CompiledKernel, CompileError, DisassemblyError
from dsmla_bench.bench.cross_compile import compile_cases
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.launch import Launch

SM90 = Architecture.parse("sm90")
CASES = [case("write", name, tokens=tokens) for name in ("bf16", "fp8") for tokens in (1, 2, 3)]


# Ahead of a sweep


def test_cases_that_share_a_kernel_are_compiled_by_one_process_and_a_failure_hinders_no_other(monkeypatch):
    compiled, where = [], []

    def plan(planned):
        if planned == CASES[0]:
            raise ValueError("a worker meets it again, and says why")
        return SimpleNamespace(compile=lambda: compiled.append((threading.get_ident(), planned)))

    barrier = threading.Barrier(2)

    def set_device(index):
        where.append(index)
        barrier.wait(timeout=20)  # both groups are in work at once

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(compile_ahead, "ProcessPoolExecutor", lambda workers, _: ThreadPoolExecutor(workers))
    compile_ahead.compile_ahead(CASES, plan, device=3, workers=2)
    assert where == [3, 3]
    assert [planned for _, planned in compiled] == CASES[3:], "the first case fails, and its kernel with it"
    assert len({thread for thread, _ in compiled}) == 1


# By several workers


class FailingWorker:
    """A worker whose parent's end raises at the second case, as where no process can be started."""

    stopped = 0

    def __init__(self, config):
        self.asked = 0

    def measure(self, case):
        self.asked += 1
        if self.asked == 2:
            raise OSError("no more processes")
        return SimpleNamespace(case=case)

    def interrupt(self):
        pass

    def stop(self):
        type(self).stopped += 1


def test_what_goes_wrong_beside_a_worker_is_raised_and_all_are_ended(monkeypatch):
    monkeypatch.setattr(FailingWorker, "stopped", 0)
    monkeypatch.setattr(cross_compile, "Worker", FailingWorker)
    with pytest.raises(OSError, match="no more processes"):
        list(compile_cases(CASES, WorkerConfig("compile"), workers=8))
    assert FailingWorker.stopped == 2, "one worker for each kernel, as there are but two"


def test_there_is_a_compiler_for_every_cpu_that_this_process_may_use():
    assert cross_compile.default_workers() == len(os.sched_getaffinity(0))


# Facts of a kernel


KERNEL = CompiledKernel(registers=40, stack_bytes=8, spilled_bytes=4, shared_bytes=0, ptx="", cubin=b"code")


@pytest.fixture
def launch():
    return Launch(None, (1,), (), {}, num_warps=4)


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Every kernel comes out as ``KERNEL``, and its file of facts is in this test's folder."""
    monkeypatch.setattr(static_facts, "compile_launch", lambda launch, arch: KERNEL)
    monkeypatch.setattr(static_facts, "disassemble", lambda cubin: "        /*0000*/  EXIT ;")
    monkeypatch.setattr(static_facts, "_file_of", lambda launch, arch: tmp_path / "kernels" / "facts.json")
    return tmp_path / "kernels"


def test_machine_code_that_cannot_be_read_is_unknown_and_not_zero(monkeypatch, launch, compiled):
    def unread(cubin):
        raise DisassemblyError("nvdisasm cannot read the cubin")

    monkeypatch.setattr(static_facts, "disassemble", unread)
    facts = static_facts.static_facts(launch, SM90)
    assert {facts[name] for name in static_facts.MIX} == {None}
    assert (facts["registers"], facts["spilled_bytes"], facts["cubin_bytes"]) == (40, 4, 4)
    assert static_facts.cached_facts(launch, SM90) == facts


def test_facts_that_cannot_be_kept_are_told_all_the_same_with_a_warning(launch, compiled):
    compiled.write_text("a file is where the folder should be")
    with pytest.warns(UserWarning, match=r"compiled facts cannot be kept here \(.*\)"):
        facts = static_facts.static_facts(launch, SM90)
    assert facts["instructions"] == 1
    assert static_facts.cached_facts(launch, SM90) is None


def test_steps_of_a_launch_count_by_their_largest_and_their_code_is_added_up(monkeypatch, launch, compiled):
    second = dataclasses.replace(launch, num_warps=8)
    kernels = {4: KERNEL, 8: dataclasses.replace(KERNEL, registers=128, stack_bytes=0, cubin=b"more code")}
    monkeypatch.setattr(static_facts, "compile_launch", lambda step, arch: kernels[step.num_warps])
    facts = static_facts.static_facts(SimpleNamespace(steps=(launch, second)), SM90)
    assert (facts["registers"], facts["stack_bytes"], facts["num_warps"], facts["cubin_bytes"]) == (128, 8, 8, 13)
    assert (facts["occupancy"], facts["occupancy_limit"]) == (25.0, "registers"), "of the step that has least"
    assert facts["instructions"] == 2


@pytest.mark.parametrize(("log", "said"), [("", "it printed nothing"), ("ptxas info: 0 errors\n", "ptxas info: 0")])
def test_a_stack_without_the_assemblers_word_on_spills_is_an_error(monkeypatch, launch, log, said):
    binary = SimpleNamespace(asm={"cubin": b"code", "ptx": ""}, metadata=SimpleNamespace(shared=0))
    monkeypatch.setattr(compiling, "_compile", lambda launch, arch: (binary, log))
    monkeypatch.setattr(compiling, "resource_usage", lambda cubin: (40, 8))
    with pytest.raises(CompileError, match=f"ptxas reported no spill stores: {said}"):
        compiling.compile_launch(launch, SM90)
    monkeypatch.setattr(compiling, "resource_usage", lambda cubin: (40, 0))
    assert compiling.compile_launch(launch, SM90).spilled_bytes == 0, "without a stack nobody is asked"
