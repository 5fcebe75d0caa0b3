"""Two runs → verdicts, findings, exit codes: what is refused, what is listed, and what each output says."""

import dataclasses
import json
import sys
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from builders import DEVICE, MANIFEST, case, compiled_sweep, refused, run_of, timed
from processes import run_command, run_python
from scipy import stats

from dsmla_bench.cli import main
from dsmla_bench.reports.comparability import VLLM_REVISIONS
from dsmla_bench.reports.comparison import UnlikeRunsError, compare
from dsmla_bench.reports.comparison_exports import to_annotations, to_document, to_junit
from dsmla_bench.reports.comparison_tables import MARKER, comparison_markdown, comparison_tables
from dsmla_bench.reports.metrics import METRICS, compare_exactly
from dsmla_bench.reports.renderings import to_text
from dsmla_bench.reports.verdicts import FIRST_LOOK, SECOND_LOOK, Evidence, control_false_discoveries, judge
from dsmla_bench.results import Run, RunError

PAIRED = {"paired": "ab-1", "config": {"processes": 12}}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def processes(key, us, seed=0, number=12, noise=0.004, **facts):
    """One measurement per process around ``us``."""
    factors = 1 + noise * np.random.default_rng(seed).standard_normal(number)
    facts = {"quantum_us": 0.001, **facts}
    return [timed(key, us * factor, process, **facts) for process, factor in enumerate(factors.tolist())]


def both(tmp_path, before, now, before_facts=None, now_facts=None, **manifest):
    """Two finished runs."""
    return (
        run_of(tmp_path / "runs", before, **{**manifest, **(before_facts or {})}),
        run_of(tmp_path / "runs", now, **{**manifest, **(now_facts or {})}),
    )


def paired(tmp_path, factor, **facts):
    """A row of 20 µs in runs measured in turns, ``factor`` times slower in the second."""
    return both(tmp_path, processes(case(), 20.0), processes(case(), 20.0 * factor, seed=1, **facts), **PAIRED)


def verdicts(found):
    return [(judged.metric, judged.verdict) for judged in found.judged]


# Times


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "same"), (1.03, "slow"), (0.97, "fast"), (0.2, "fast"), (1.01, "same")]
)
def test_rows_of_paired_runs_get_a_verdict_and_only_slow_is_a_finding(tmp_path, factor, verdict):
    found = compare(*paired(tmp_path, factor))
    assert (found.paired, verdicts(found)) == (True, [("us", verdict)])
    assert bool(found.findings) == (verdict == "slow"), "however large, an improvement is no finding"
    (judged,) = found.judged
    assert judged.change == pytest.approx(factor - 1, abs=0.005)
    assert judged.lo < judged.change < judged.hi


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "same"), (1.03, "slow")])
def test_pairing_cancels_what_both_processes_of_a_pair_share(tmp_path, factor, verdict):
    """A card that becomes 20 % slower while it is measured still shows 3 %, and nothing where nothing changed."""

    def drifting(seed, us):
        drift = np.linspace(1.0, 1.2, 12).tolist()
        measurements = processes(case(), us, seed)
        return [
            dataclasses.replace(m, samples={"graph": [us * slower for us in m.samples["graph"]]})
            for m, slower in zip(measurements, drift, strict=True)
        ]

    base, head = both(tmp_path, drifting(0, 20.0), drifting(1, 20.0 * factor), **PAIRED)
    assert verdicts(compare(base, head)) == [("us", verdict)]


def test_a_slow_row_must_be_slow_in_cycles_too_when_the_clocks_differ(tmp_path):
    before = processes(case(), 20.0, sm_mhz=1980.0)
    lower_clock = processes(case(), 20.0 * 1.1, seed=1, sm_mhz=1800.0)
    slower = processes(case(), 20.0 * 1.1, seed=1, sm_mhz=1950.0)
    (judged,) = compare(*both(tmp_path, before, lower_clock, **PAIRED)).judged
    assert judged.verdict == "unresolved"
    assert judged.reason.startswith("the clock was 1980 and 1800 MHz: slow in time (+10")
    assert verdicts(compare(*both(tmp_path, before, slower, **PAIRED))) == [("us", "slow")]


def test_what_cannot_be_resolved_is_not_guessed(tmp_path):
    coarse = compare(
        *both(tmp_path, processes(case(), 8.0, quantum_us=0.5), processes(case(), 8.3, quantum_us=0.5), **PAIRED)
    )
    assert verdicts(coarse) == [("us", "unresolved")]
    assert "the clock resolves 0.5 µs" in coarse.judged[0].reason
    launch_bound = compare(*both(tmp_path, processes(case(), 1.3), processes(case(), 1.34, seed=1), **PAIRED))
    assert "launch-bound: an empty kernel takes 0.73 of 1.3" in launch_bound.judged[0].reason
    doubled = compare(*both(tmp_path, processes(case(), 1.3), processes(case(), 2.6, seed=1), **PAIRED))
    assert verdicts(doubled) == [("us", "slow")], "twice as slow is slow by any clock"


def test_noise_of_the_row_itself_widens_its_gate(tmp_path):
    (judged,) = compare(
        *both(tmp_path, processes(case(), 20.0, noise=0.06), processes(case(), 20.8, seed=1, noise=0.06), **PAIRED)
    ).judged
    assert (judged.verdict, judged.gate > 0.04) == ("unresolved", True)
    assert "processes of the same code differ" in judged.reason


def test_few_pairs_say_so(tmp_path):
    (judged,) = compare(
        *both(tmp_path, processes(case(), 20.0, number=4), processes(case(), 22.0, 1, number=4), **PAIRED)
    ).judged
    assert (judged.verdict, judged.reason) == ("ambiguous", "too few processes for any verdict")


def test_processes_without_a_counterpart_are_no_pair_and_the_row_does_not_vanish(tmp_path):
    before, after = processes(case(), 20.0), processes(case(), 22.0, seed=1)
    head_alone = [dataclasses.replace(m, process=m.process + 100) for m in after]
    (judged,) = compare(*both(tmp_path, before, head_alone, **PAIRED)).judged
    assert (judged.verdict, "no process of one has its counterpart" in judged.reason) == ("unresolved", True)
    (judged,) = compare(*both(tmp_path, before, after[:9], **PAIRED)).judged
    assert (judged.verdict, judged.processes) == ("slow", 9)


def test_rows_with_more_pairs_than_planned_were_looked_at_before_and_need_more_confidence(tmp_path):
    before, after = processes(case(), 20.0, number=24), processes(case(), 20.6, seed=1, number=24)
    (judged,) = compare(*both(tmp_path, before, after, **PAIRED)).judged
    times = [[m.samples["graph"][0] for m in measurements] for measurements in (before, after)]
    first, second = (judge(Evidence(*times, paired=True, confidence=level)) for level in (FIRST_LOOK, SECOND_LOOK))
    assert judged.lo == second.lo < first.lo


def test_case_d8_noise_and_many_comparisons():
    """Case D8: 5 and 5 processes that were not measured in turns; then 500 rows in which nothing changed."""
    base = [10.0, 10.4, 9.7, 10.2, 10.1]
    quiet, regressed = [10.5, 9.9, 10.7, 10.1, 10.6], [12.0, 12.1, 12.2, 11.9, 12.0]

    def p_of_means(now):
        result = stats.permutation_test((now, base), lambda a, b, axis: a.mean(axis) - b.mean(axis), n_resamples=np.inf)
        return result.pvalue * 252

    first, second = judge(Evidence(base, quiet, paired=False)), judge(Evidence(base, regressed, paired=False))
    assert METRICS["us"].change(np.median(base), np.median(quiet)) == "+4.0 %"
    assert (p_of_means(quiet), p_of_means(regressed)) == (pytest.approx(56), pytest.approx(2))
    assert (first.verdict, second.verdict) == ("unresolved", "slow")
    assert (second.change, second.p_value) == (pytest.approx(0.188, abs=0.005), pytest.approx(2 / 252))
    generator = np.random.default_rng(0)
    samples = [(generator.normal(10, 0.5, 5), generator.normal(10, 0.5, 5)) for _ in range(500)]
    bare = sum(np.median(now) > 1.05 * np.median(then) for then, now in samples)
    rows = [judge(Evidence(then, now, paired=False)) for then, now in samples]
    found = [row.verdict for row in control_false_discoveries(rows, ["one kernel"] * 500)]
    assert (bare, found.count("slow"), found.count("fast")) == (46, 0, 0)
    alone = [row.verdict for row in rows]
    assert alone.count("slow") <= 5
    assert alone.count("fast") <= 5


def test_a_discovery_must_survive_the_rows_beside_it():
    likely = judge(Evidence([20.0] * 9, [21.0 + 0.01 * r for r in range(9)], paired=True))
    nothing = judge(Evidence([20.0, 20.1] * 6, [20.1, 20.0] * 6, paired=True))
    alone = control_false_discoveries([likely, nothing], ["a", "b"])
    crowded = control_false_discoveries([likely] + [nothing] * 60, ["a"] * 61)
    assert (likely.verdict, alone[0].verdict, crowded[0].verdict) == ("slow", "slow", "ambiguous")
    assert "among 61 rows" in crowded[0].reason


# Rows and statuses


def test_case_d1_absent_axes_match_and_rows_of_one_run_are_listed(tmp_path):
    """Case D1: an axis that an operation lacks (None) is a key like any other; no row is paired twice or dropped."""
    fused, write = case("fused_q", variant=None), case("write")
    base, head = both(
        tmp_path,
        [timed(fused, 1.0, 0), timed(fused, 2.0, 1), timed(write, 3.0)],
        [timed(fused, 1.1, 0), timed(fused, 2.2, 1)],
    )
    found = compare(base, head)
    (judged,) = found.judged
    assert (judged.before, judged.now, judged.change) == (1.5, pytest.approx(1.65), pytest.approx(0.10))
    assert [line.split(",")[0] for line in found.missing] == ["write fp8_ds_mla:pow2 triton"]
    assert "missing in head: write fp8_ds_mla:pow2 triton, 128 tokens" in to_text(comparison_tables(found))
    assert compare(head, base).added == found.missing


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        ("ok", "incorrect", "incorrect"),
        ("incorrect", "incorrect", "incorrect"),
        ("ok", "runtime_error", "worse"),
        ("ok", "skipped", "worse"),
        ("ok", "throttled", "unresolved"),
        ("throttled", "ok", "unresolved"),
        ("oom", "ok", "better"),
        ("oom", "timeout", "changed"),
    ],
)
def test_statuses_are_judged_and_say_why(tmp_path, before, now, verdict):
    made = {"ok": timed(case(), 5.0)}
    runs = [[made.get(status) or refused(case(), status, f"why {status}")] for status in (before, now)]
    found = compare(*both(tmp_path, *runs))
    assert verdicts(found) == [("status", verdict)]
    assert found.judged[0].reason.startswith(f"{before} → {now}")
    assert bool(found.findings) == (verdict in ("incorrect", "worse"))


def test_bytes_are_compared_exactly(tmp_path):
    found = compare(*both(tmp_path, [timed(case(), 5.0)], [timed(case(), 5.0, bytes_read=128 * 1152 + 1)]))
    assert verdicts(found)[0] == ("bytes_read", "worse")
    assert len(found.findings) == 1


def test_compiled_kernels_are_judged_by_the_static_gate(tmp_path):
    spilled = [
        dataclasses.replace(m, facts={**m.facts, "spilled_bytes": 8}) if m.case == case("write", "bf16") else m
        for m in compiled_sweep()
    ]
    found = compare(*both(tmp_path, compiled_sweep(), spilled))
    assert [(f.subject, f.reason) for f in found.findings] == [
        ("sm90 write bf16:raw triton, 128 tokens", "spills registers: spilled B 0 → 8")
    ]
    assert not compare(*both(tmp_path, compiled_sweep(), compiled_sweep())).findings


def test_comparing_nothing_is_a_mistake_not_a_pass(tmp_path):
    with pytest.raises(RunError, match="no row in common"):
        compare(*both(tmp_path, [timed(case(), 5.0)], [timed(case("gather"), 5.0)]))


# Which runs are comparable


def device(**changes):
    return {"device": {**MANIFEST["device"], **changes}}


def test_case_d5_the_same_gpu_with_other_clocks_driver_or_packages_is_compared_and_listed(tmp_path):
    """Case D5 a, c, d."""
    rows = [timed(case(), 5.0)]
    clocks = both(tmp_path, [timed(case(), 5.0, sm_mhz=1980.0)], [timed(case(), 5.0, sm_mhz=1965.0)])
    assert compare(*clocks).differences == ("SM clock while timing: 1980 and 1965 MHz",)
    driver = both(tmp_path, rows, rows, device(driver="575"), device(driver="580"))
    assert compare(*driver).differences == ("driver: 575 and 580",)
    packages = both(tmp_path, rows, rows, {"packages": {"vllm": "0.26"}}, {"packages": {"vllm": "0.33"}})
    found = compare(*packages)
    assert found.differences == ("vllm: 0.26 and 0.33", VLLM_REVISIONS)
    assert "differs: vllm: 0.26 and 0.33" in to_text(comparison_tables(found))


UNLIKE = {
    "GPU model: NVIDIA H200 and NVIDIA H100": lambda m: (m, device(name="NVIDIA H100")),
    "MIG: False and True": lambda m: (m, device(mig=True)),
    "multiprocessors: 132 and 66": lambda m: (m, device(sm_count=66)),
    "method: graph and activity": lambda m: (dataclasses.replace(m, samples={"activity": [5.0]}), {}),
    "L2 state: cold and hot": lambda m: (dataclasses.replace(m, case=case(l2_state="hot")), {}),
    "revision of fp8_ds_mla: pow2 and amax448": lambda m: (dataclasses.replace(m, case=case(revision="amax448")), {}),
    "architecture: sm90 and sm100": lambda m: (dataclasses.replace(m, case=case(arch="sm100")), {}),
    "recipe (hash): none and 1f": lambda m: (m, {"recipe": "1f"}),
}


@pytest.mark.parametrize(("field", "change"), UNLIKE.items(), ids=UNLIKE)
def test_case_d5_unlike_runs_are_refused_by_the_fields_name_unless_forced(tmp_path, field, change):
    """Case D5 b and its kind: forced, they are compared, and the output says so first."""
    now, facts = change(timed(case(), 5.0))
    whole = device(mig=False, sm_count=132)
    base, head = both(tmp_path, [timed(case(), 5.0)], [now], before_facts=whole, now_facts=facts)
    with pytest.raises(UnlikeRunsError) as refusal:
        compare(base, head)
    assert f"cannot be compared: {field}" in str(refusal.value)
    found = compare(base, head, force=True)
    assert (found.forced, len(found.judged)) == ((field,), 1)
    assert f"FORCED although unlike in {field}" in to_text(comparison_tables(found)).splitlines()[0]


def test_runs_of_different_kinds_are_refused_even_when_forced(tmp_path):
    base, head = both(tmp_path, [timed(case(), 5.0)], [timed(case(), 5.0)], now_facts={"kind": "error"})
    with pytest.raises(UnlikeRunsError, match=r"kind of run: kernels and error$"):
        compare(base, head, force=True)


def test_case_d3_a_run_that_was_cut_short_is_compared_with_a_warning(tmp_path):
    """Case D3: the cut line is set aside and named, the rows before it are judged, and the comparison says so."""
    base, head = both(tmp_path, [timed(case(), 5.0)], [timed(case(), 5.0), timed(case("gather"), 5.0)])
    file = head.path / "rows.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:40])
    manifest = json.loads((head.path / "manifest.json").read_text())
    del manifest["ended_at"]
    (head.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match=r"rows\.jsonl:2: the last line is cut short"):
        head = Run.load(head.path)
    found = compare(base, head)
    assert len(found.judged) == 1
    assert found.differences == ("head did not end: only the rows that it left are compared",)
    assert file.read_bytes() == lines[0] + lines[1][:40], "reading changes nothing"


# Errors and directions


def test_case_d6_every_metric_knows_which_way_is_better():
    """Case D6."""
    for name, before, now, verdict, text in (
        ("us", 10.0, 8.0, "better", "-20.0 %"),
        ("gbps", 100.0, 80.0, "worse", "-20.0 %"),
        ("rel_l2", 0.0951, 0.0999, "worse", "+5.0 %"),
        ("accuracy", 0.95, 0.94, "worse", "-1.0 pt"),
        ("snr_db", 20.0, 21.0, "better", "+5.0 %"),
        ("gain", 1.02, 0.99, "better", "-2.9 %"),
        ("mean_bias", -0.01, 0.02, "worse", "+300.0 %"),
        ("clipped", 0, 3, "worse", "0 → 3"),
    ):
        assert (compare_exactly(METRICS[name], before, now), METRICS[name].change(before, now)) == (verdict, text)
    assert compare_exactly(METRICS["rel_l2"], 0.0951, 0.0951 * (1 + 1e-7)) == "same"


def error_run(tmp_path, rel_l2, **manifest):
    run = Run.create(tmp_path / "runs", {"kind": "error", "config": {"seed": 0, "tokens": 4096}, **manifest})
    variant = {"format": "nvfp4_ds_mla", "revision": "rn", "data": "normal sigma=1", "provider": "reference"}
    row = {**variant, "scale_origin": None, "latent_scale": 1.0, "only": None, "part": "NoPE", "status": "ok"}
    figures = {"rel_l2": rel_l2, "snr_db": None, "seconds": 1.0, "bytes_per_token": 352}
    pd.DataFrame([{**row, **figures}]).to_parquet(run.path / "errors.parquet")
    run.finish()
    return Run.load(run.path)


def test_errors_are_compared_exactly_and_a_worse_one_is_a_finding(tmp_path):
    base, head = error_run(tmp_path, 0.0951), error_run(tmp_path, 0.0999)
    found = compare(base, head)
    assert sorted(verdicts(found)) == [("bytes_per_token", "same"), ("rel_l2", "worse")]
    assert found.findings[0].subject == "errors nvfp4_ds_mla rn normal sigma=1 reference 1.0 NoPE"
    assert found.findings[0].reason == "+5.0 %"
    assert compare(head, base).findings == ()
    with pytest.raises(UnlikeRunsError, match=r"recipe \(seed\): 0 and 7"):
        compare(base, error_run(tmp_path, 0.0951, config={"seed": 7, "tokens": 4096}))


# What is printed and written


@pytest.fixture
def worse(tmp_path):
    """A comparison with a finding, a row that is the same, an unsettled and a missing one."""
    rows = {"slow": case(tokens=8192), "same": case(tokens=65536), "few": case(tokens=1024)}
    before = [*processes(rows["slow"], 20.0), *processes(rows["same"], 40.0), *processes(rows["few"], 30.0, number=2)]
    after = [
        *processes(rows["slow"], 21.0, 1),
        *processes(rows["same"], 40.0, 1),
        *processes(rows["few"], 30.0, number=2),
    ]
    return both(tmp_path, [*before, timed(case("gather"), 5.0)], after, **PAIRED)


def test_text_and_markdown_show_findings_first_and_same_rows_when_asked(worse):
    found = compare(*worse)
    text = to_text(comparison_tables(found))
    assert text.startswith("Worse: 1 slow, 1 ambiguous, 1 same.\n")
    assert text.index("Findings") < text.index("Not settled") < text.index("missing in head")
    assert "65536" not in text
    assert "65536" in to_text(comparison_tables(found, everything=True))
    markdown = comparison_markdown(found)
    assert markdown.startswith(MARKER)
    assert "| slow | write fp8_ds_mla:pow2 triton 8192 tokens ordered block 64 | time µs |" in markdown


def test_json_is_strict_and_complete(worse):
    text = json.dumps(to_document(compare(*worse)), allow_nan=False)
    document = json.loads(text)
    assert (document["regression"], document["counts"]) == (True, {"slow": 1, "ambiguous": 1, "same": 1})
    few = next(judged for judged in document["judged"] if judged["verdict"] == "ambiguous")
    assert (few["lo"], few["hi"]) == (None, None), "an unbounded interval is null, not Infinity"
    assert document["missing"]


def test_junit_counts_what_it_holds_and_fails_findings_only(worse):
    suite = ElementTree.fromstring(to_junit(compare(*worse)).encode()).find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    assert len(suite.findall("testcase")) == 4
    (failure,) = suite.findall("testcase/failure")
    assert failure.get("type") == "slow"
    assert failure.get("message").startswith("slow, 20.0")
    assert len(suite.findall("testcase/skipped")) == 2


def test_annotations_escape_what_github_reads_as_syntax(worse):
    error, warning, notice = to_annotations(compare(*worse)).splitlines()
    assert error.startswith("::error title=write fp8_ds_mla%3Apow2 triton 8192 tokens ordered block 64::slow, ")
    assert "%25" in error
    assert warning.startswith("::warning title=missing in head::gather fp8_ds_mla:pow2 triton, 128 tokens")
    assert notice == "::notice title=dsmla-bench compare::Worse: 1 slow, 1 ambiguous, 1 same."


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["dsmla-bench", "compare", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), *capsys.readouterr()


def test_exit_codes_and_files(worse, tmp_path, monkeypatch, capsys):
    base, head = (run.path for run in worse)
    files = ["--markdown", tmp_path / "comment.md", "--junit", tmp_path / "junit.xml"]
    code, out, _ = command(monkeypatch, capsys, base, head, *files, "--github")
    assert (code, out.splitlines()[0]) == (1, "Worse: 1 slow, 1 ambiguous, 1 same.")
    assert "::error title=" in out
    assert (tmp_path / "comment.md").read_text(encoding="utf-8").startswith(MARKER)
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"
    code, out, _ = command(monkeypatch, capsys, head, base, "--json")
    assert (code, json.loads(out)["counts"]["fast"]) == (0, 1)
    code, _, err = command(monkeypatch, capsys, base, tmp_path)
    assert (code, "not a run" in err) == (2, True)


def test_case_d12_labels_that_are_not_ascii_reach_every_output(tmp_path):
    """Case D12: an ASCII console gets stand-ins and never "?", files are UTF-8 and read back identical."""
    label = "H200 – Prüfstand 试验 µs"
    rows = [timed(case(), 5.0)]
    base, head = both(tmp_path, rows, [refused(case(), "runtime_error", label)], **device(name=label))
    files = ["--markdown", tmp_path / "comment.md", "--junit", tmp_path / "junit.xml"]
    done = run_command("compare", base.path, head.path, *files, "--github", **ASCII)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.isascii()
    assert "?" not in done.stdout
    assert "Pr\\xfcfstand" in done.stdout
    assert "试验 µs" in (tmp_path / "comment.md").read_text(encoding="utf-8")
    message = ElementTree.parse(tmp_path / "junit.xml").find(".//failure").get("message")
    assert message.endswith(label)
    done = run_command("compare", base.path, head.path, "--json", **ASCII)
    assert json.loads(done.stdout)["device"] == label


def test_comparing_imports_no_torch(worse):
    paths = [str(run.path) for run in worse]
    script = f"""
import sys
from dsmla_bench.cli import main
sys.argv = ["dsmla-bench", "compare", *{paths}]
try:
    main()
except SystemExit as ended:
    print(ended.code, sorted({{"torch", "triton"}} & set(sys.modules)))
"""
    done = run_python("-c", script)
    assert done.stdout.splitlines()[-1] == "1 []", done.stderr
    assert DEVICE in done.stdout
