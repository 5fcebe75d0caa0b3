"""``dsmla-bench compile``: tables, JSON, reasons in words, and the gate's exit codes that CI relies on."""

import json
import re
from pathlib import Path

import plugins
import pytest
from processes import PACKAGES, run_command

from dsmla_bench.cli.compile import targets
from dsmla_bench.results import Run

SMALL = ["--ops", "write", "--formats", "bf16,fp8", "--tokens", "1,16,65536"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The environment of commands that share one cache."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def earlier(cache, tmp_path_factory):
    """A run of SMALL on a target that has no e4m3 conversion and one that has, and what it printed."""
    out = tmp_path_factory.mktemp("runs")
    done = run_command("compile", "--arch", "sm80,sm100", *SMALL, "--out", out, **cache)
    assert done.returncode == 0, done.stderr
    [path] = out.iterdir()
    return path, done.stdout


def test_a_table_per_target_has_a_line_per_kernel_and_reasons_in_words(earlier):
    path, text = earlier
    assert text.startswith("Nothing was timed: kernels were compiled for sm_80, sm_100, and none was run\n")
    assert "sm80 · A100 SXM 80 GB, 2039 GB/s (published)" in text
    lines = [" ".join(line.split()) for line in text[text.index("\nsm100 · B200 SXM") :].splitlines()]
    kernels = [line for line in lines if line.startswith("write ")]
    assert [line.split(" ")[1] for line in kernels] == ["bf16", "bf16", "fp8", "fp8"]
    assert [re.match(r"write \w+ (1 to 16|65536) ", line) is not None for line in kernels] == [True] * 4
    reason = "fp8 needs an exact conversion that sm_80 lacks; the first with it is sm_90"
    assert f"skipped: triton fp8:per_tensor (write; 3 rows): {reason}" in text
    assert text.rstrip().endswith(f"run: {path}")


def test_rows_have_every_fact_and_the_manifest_the_targets(earlier):
    run = Run.load(earlier[0])
    rows = run.rows()
    compiled = rows[rows["status"] == "compiled"]
    assert len(rows) == 12
    assert len(compiled) == 9
    known = ["registers", "occupancy", "occupancy_limit", "instructions", "cubin_bytes", "num_warps", "predicted_us"]
    assert compiled[known].notna().all(axis=None)
    native = compiled.groupby(["arch", "format"])["native_fp8"].unique()
    assert {key: list(values) for key, values in native.items()} == {
        ("sm80", "bf16"): [False],
        ("sm100", "bf16"): [False],
        ("sm100", "fp8"): [True],
    }
    assert run.manifest["targets"]["sm100"]["compute_capability"] == "10.0"
    assert run.manifest["targets"]["sm100"]["part"] == "B200 SXM"


def test_the_same_kernels_against_themselves_are_no_regression(earlier, cache, tmp_path):
    done = run_command(
        "compile", "--arch", "sm80,sm100", *SMALL, "--out", tmp_path, "--against", earlier[0], "--json", **cache
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    changes = document["changes"]
    assert changes.pop("compared") == 9
    assert set(map(len, changes.values())) == {0}
    then = {row["row_id"]: row for row in Run.load(earlier[0]).records()}
    assert {row["row_id"]: row for row in document["rows"]} == then


def test_a_report_of_compiled_kernels_has_a_picture_per_target(earlier, tmp_path):
    done = run_command("report", earlier[0], "--out", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report" / "report.md").read_text()
    assert "![What the compiled kernels consist of: instructions. " in text
    assert "](kernels.png)" in text
    assert (tmp_path / "report" / "kernels.png").read_bytes().startswith(b"\x89PNG")
    assert "sm100 is B200 SXM, compute capability 10.0, 148 SMs" in text
    assert "### sm100 · B200 SXM, 8000 GB/s (published)" in text


def test_planted_regressions_fail_the_gate(cache, tmp_path):
    """Packages that replace two kernels by copies that spill and that lost the native conversion."""
    options = ["--ops", "write", "--formats", "toy,toy_nvfp4", "--arch", "sm100", "--tokens", "65536"]
    installed = {}
    for name in ("BEFORE", "AFTER"):
        installed[name] = tmp_path / name
        plugins.install(installed[name], "toys", {"dsmla_bench.formats": f"toy_regressions:{name}"})
    before = run_command("compile", *options, "--out", tmp_path / "a", path=[installed["BEFORE"]], **cache)
    assert before.returncode == 0, before.stderr
    [run] = (tmp_path / "a").iterdir()
    after = run_command(
        "compile", *options, "--out", tmp_path / "b", "--against", run, path=[installed["AFTER"]], **cache
    )
    assert after.returncode == 1, after.stderr
    found = [line for line in after.stdout.splitlines() if line.startswith("REGRESSION: ")]
    assert any(
        line.startswith("REGRESSION: sm100 write toy:v1 triton (65536 tokens): spills registers") for line in found
    )
    assert any(
        "write toy_nvfp4:rn triton (65536 tokens): no longer uses the native e2m1 conv" in line for line in found
    )


def test_what_does_not_compile_is_a_sentence_and_the_compilers_words_come_on_request(cache, tmp_path):
    plugins.install(tmp_path, "toys", {"dsmla_bench.formats": "toy_format:BAD_FORMATS"})
    options = [
        "--ops",
        "write",
        "--formats",
        "toy_broken",
        "--arch",
        "sm90",
        "--tokens",
        "1",
        "--out",
        tmp_path / "out",
    ]
    done = run_command("compile", *options, path=[tmp_path], **cache)
    assert done.returncode == 1
    assert re.search(
        r"compile_error: triton toy_broken:v1 .*: Triton \S+ cannot compile this kernel for sm_90\n", done.stdout
    )
    assert "arange's range must be a power of 2" not in done.stdout
    assert "--verbose shows what the compiler said" in done.stdout
    assert (
        "arange's range must be a power of 2"
        in run_command("compile", *options, "--verbose", path=[tmp_path], **cache).stdout
    )


def test_all_names_every_known_target_and_none_is_a_mistake():
    assert [arch.name for arch in targets("all")] == ["sm80", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"]
    assert [arch.name for arch in targets("sm90,sm_90a, sm100")] == ["sm90", "sm100"]
    with pytest.raises(ValueError, match="--arch must name targets"):
        targets(",")


def test_the_workflow_for_ci_uses_options_that_exist():
    text = (PACKAGES / "examples" / "ci" / "kernels.yml").read_text()
    used = set(re.findall(r"(?<=\s)--[a-z]+", "\n".join(re.findall(r"dsmla-bench compile.*", text))))
    assert {"--against", "--out"} <= used
    known = run_command("compile", "--help", COLUMNS="200").stdout
    assert [option for option in used if option not in known] == []
    assert Path(PACKAGES / "examples" / "ci").is_dir()
