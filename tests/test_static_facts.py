"""Compiler facts of kernels: native conversions where a target has them, spills, planted regressions, the cache."""

import itertools
import json
import threading
from pathlib import Path

import pytest
from builders import case, refused
from processes import run_python

from dsmla_bench.bench import cross_compile
from dsmla_bench.bench.cross_compile import compile_cases
from dsmla_bench.bench.static_facts import STATIC_FACTS
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.reports.static_changes import static_changes
from dsmla_bench.results import rows_frame
from dsmla_bench.rows import ROW_FIELDS
from dsmla_bench.summary import summarise

E2M1_PTX, E2M1_SASS = "cvt.rn.satfinite.e2m1x2.f32", "F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the script ``static_compiling.py`` prints, with an empty cache."""
    cache = tmp_path_factory.mktemp("cache")
    done = run_python(Path(__file__).with_name("static_compiling.py"), XDG_CACHE_HOME=str(cache))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("revision", "arch"), list(itertools.product(("rn", "up"), ("sm100", "sm103", "sm120"))))
def test_blackwell_writes_nvfp4_with_its_instruction(found, revision, arch):
    conversions = found["nvfp4"][f"{revision} {arch}"]
    assert E2M1_PTX in conversions["ptx"]
    if "unread" in conversions:
        pytest.skip(conversions["unread"])
    assert E2M1_SASS in conversions["sass"]


@pytest.mark.parametrize(("revision", "arch"), list(itertools.product(("rn", "up"), ("sm90",))))
def test_before_blackwell_nvfp4_is_written_by_integer_arithmetic(found, revision, arch):
    conversions = found["nvfp4"][f"{revision} {arch}"]
    assert not [name for name in (*conversions["ptx"], *conversions["sass"]) if "e2m1" in name.lower()]
    assert any("E4M3" in name for name in conversions["sass"])  # of the scales and RoPE, which these targets convert


def test_spilled_bytes_are_what_the_machine_code_stores_to_local_memory(found):
    """Two sources agree: ptxas's own report, and the widths of the local stores."""
    for name, facts in found["toys"].items():
        assert facts["spilled_bytes"] == facts["local_store_bytes"], name
        assert (facts["spilled_bytes"] > 0) == (facts["stack_bytes"] > 0) == (name == "spilling"), name


def row_of(facts):
    columns = {name: value for name, value in facts.items() if name in STATIC_FACTS}
    return rows_frame([summarise([refused(case("write", "bf16", arch="sm100"), "compiled", "no device", **columns)])])


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        ("toy", "spilling", "spills registers: spilled B 0 → "),
        ("toy", "by_16_bits", "narrower global stores: 4 of 128 bits, 1 of 64 bits → 1 of 64 bits, 32 of 16 bits"),
        ("nvfp4", "without_native", "no longer uses the native e2m1 conversion"),
    ],
)
def test_each_planted_regression_is_found(found, before, after, finding):
    then, now = (row_of(found["toys"][name]) for name in (before, after))
    assert any(change.text.startswith(finding) for change in static_changes(then, now).findings)
    assert static_changes(then, then).findings == ()


def test_a_kernel_is_compiled_once_for_a_target_and_again_only_when_its_file_is_spoilt(found):
    first, again, *spoilt, other_target = found["cached"]["compiled"]
    assert (first, again, other_target) == (1, 0, 1)
    assert spoilt == [1] * 6
    assert found["cached"]["equal"]
    assert set(found["cached"]["files"]) == {".json"}  # no half-written file is left


def test_every_static_fact_is_a_column_of_a_row():
    assert set(STATIC_FACTS) < set(ROW_FIELDS)


def test_several_workers_answer_every_case_once_and_stop_when_nobody_listens(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cases = [case("write", format, tokens=tokens) for format in ("bf16", "fp8") for tokens in (1, 2)]
    cases.append(case("write", "fp8", arch="sm80"))
    before = set(threading.enumerate())
    answers = list(compile_cases(cases, WorkerConfig("compile"), workers=2))
    assert sorted(m.case.row_id for m in answers) == sorted(key.row_id for key in cases)
    assert sorted(m.status for m in answers) == ["compiled"] * 4 + ["skipped"]
    assert len(list(tmp_path.rglob("*.json"))) == 2  # two kernels for four shapes
    monkeypatch.setattr(cross_compile, "is_interpreting", lambda: False)
    with monkeypatch.context() as patched:
        patched.setattr(cross_compile.CompileBench, "known", lambda bench, case: 1 / 0)
        assert len(list(compile_cases(cases[-1:], WorkerConfig("compile"), workers=1))) == 1
    monkeypatch.setattr(cross_compile, "is_interpreting", lambda: True)
    unheard = compile_cases(cases, WorkerConfig("compile"), workers=2)
    next(unheard)
    unheard.close()
    assert set(threading.enumerate()) - before == set()
