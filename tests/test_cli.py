"""The command line: what it prints, what it leaves on disk, and the exit codes that CI may rely on."""

import json
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from builders import case, compiled_sweep, h200_sweep, refused, run_of, timed
from processes import ABSENT, compiling_environment, run_command, run_python

from dsmla_bench.cli.kernels import exit_code
from dsmla_bench.cli.resuming import differing
from dsmla_bench.results import ResumeError, Run
from dsmla_bench.rows import STATUSES

LABEL = "H200 – Prüfstand 试验 µs"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
"""An environment in which Python can print ASCII only."""


def squeezed(text):
    """The lines of ``text`` with runs of spaces as one, so that column widths do not matter."""
    return [" ".join(line.split()) for line in text.splitlines()]


# Help


def test_help_of_every_command_is_ascii_and_imports_nothing_heavy():
    script = """
import sys
import typer
from dsmla_bench.cli import app, main
for command in [[], ["history", "add"], *([name] for name in typer.main.get_command(app).commands)]:
    sys.argv = ["dsmla-bench", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, command
heavy = {"torch", "triton", "numpy", "pandas", "matplotlib", "plotly", "pyarrow", "fsspec", "upath", "tomlkit", "ray"}
print("HEAVY", sorted(heavy & set(sys.modules)))
"""
    done = run_python("-c", script, **ASCII)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    for name in ("kernels", "report", "formats", "list", "env", "demo"):
        assert f" {name} " in done.stdout


# Formats


def test_formats_shows_sizes_fields_and_architectures(cli):
    code, out, err = cli("formats")
    lines = squeezed(out)
    assert (code, err) == (0, "")
    assert lines[0] == "format revision B/token B/page of 64 bf16/this architectures row, in byte order"
    scaled = "sm90+ 512 e4m3 NoPE | 4 fp32 scales | 64 bf16 RoPE"
    nvfp4 = "sm100+; emulated on sm90 512 e2m1 NoPE | 64 e4m3 RoPE | 32 e4m3 scales"
    for line in (
        "bf16 raw (default) 1152 73728 1 all 512 bf16 NoPE | 64 bf16 RoPE",
        f"fp8_ds_mla pow2 (default) 656 41984 1.756 {scaled}",
        f"fp8_ds_mla amax448 656 41984 1.756 {scaled}",
        "fp8 per_tensor (default) 576 36864 2 sm90+ 512 e4m3 NoPE | 64 e4m3 RoPE",
        f"nvfp4_ds_mla rn (default) 352 22528 3.273 {nvfp4}",
        f"nvfp4_ds_mla up 352 22528 3.273 {nvfp4}",
    ):
        assert line in lines


def test_formats_draws_the_byte_map_of_one(cli):
    _, out, _ = cli("formats", "--format", "nvfp4_ds_mla")
    assert out == (
        "nvfp4_ds_mla:rn: 352 bytes per token (e2m1 NoPE in tiles of 16 with e4m3 scales, e4m3 RoPE)\n"
        "\n"
        "0                                                                256              320           352\n"
        "+----------------------------------------------------------------+----------------+-------------+\n"
        "|                           NoPE e2m1                            |   RoPE e4m3    | scales e4m3 |\n"
        "+----------------------------------------------------------------+----------------+-------------+\n"
        "\n"
        "  [0, 256)    512 e2m1 NoPE, 256 bytes; even value in the low nibble\n"
        "  [256, 320)  64 e4m3 RoPE, 64 bytes\n"
        "  [320, 352)  32 e4m3 scales, 32 bytes; tile s at 8 (s & 3) + (s >> 2)\n"
    )


def test_formats_as_json_follows_the_block_size(cli):
    _, out, _ = cli("formats", "--json", "--block-size", "16")
    formats = {(fmt["format"], fmt["revision"]): fmt for fmt in json.loads(out)}
    nvfp4 = formats["nvfp4_ds_mla", "rn"]
    assert (nvfp4["bytes_per_token"], nvfp4["bytes_per_page"]) == (352, 16 * 352)
    assert (nvfp4["conversion"]["sm80"], nvfp4["conversion"]["sm90"]) == (None, "emulated")
    assert [(field["name"], field["offset"], field["bytes"]) for field in nvfp4["fields"]] == [
        ("NoPE", 0, 256),
        ("RoPE", 256, 64),
        ("scales", 320, 32),
    ]


# Going on with a run


@pytest.mark.parametrize(
    ("what", "name", "was", "now", "words"),
    [
        ("config", "tokens", [1, 16], None, "with --tokens 1,16 and cannot go on without --tokens; give the options"),
        ("config", "l2_states", ["cold"], ["cold", "hot"], "with --l2 cold and cannot go on with --l2 cold,hot;"),
        ("config", "seed", 0, 1, "with --seed 0 and cannot go on with --seed 1;"),
        (
            "config",
            "libraries",
            {"flash_mla": "a.so"},
            {},
            "with --flash-mla-library a.so and cannot go on without a library;",
        ),
        (
            "identity",
            "packages",
            {"torch": "2.11", "triton": "3.6"},
            {"torch": "2.12", "triton": "3.6"},
            "with packages torch 2.11 and cannot go on with packages torch 2.12; go on as it began, or start",
        ),
        (
            "identity",
            "git",
            {"commit": "a", "dirty": False},
            None,
            "with git commit a, dirty no and cannot go on without",
        ),
    ],
)
def test_a_run_that_was_begun_otherwise_is_told_in_options(what, name, was, now, words):
    assert f"runs/A: was measured {words}" in differing(ResumeError("runs/A", what, name, was, now))


# List and environment


def test_list_gives_every_combination_or_why_not(cli, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    library = ("--vllm-library", tmp_path / "text.so")
    code, out, _ = cli("list", "--arch", "sm80", *library, "--json")
    cases = {(c["operation"], c["format"], c["provider"]): c["why_not"] for c in json.loads(out)["cases"]}
    assert code == 0
    assert cases["write", "fp8:per_tensor", "reference"] is None
    assert cases["gather", "bf16:raw", "triton"] is None
    assert "sm_80" in cases["write", "fp8:per_tensor", "triton"]
    assert f"--vllm-library {tmp_path / 'text.so'}: cannot be loaded" in cases["write", "bf16:raw", "vllm"]
    assert {key[1].partition(":")[0] for key in cases} == {"bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"}, "as a sweep"
    lines = squeezed(cli("list", "--arch", "sm80", *library)[1])
    _, write, *_ = " / ".join(lines[lines.index("who serves what on sm_80") :]).split(" / write / ")
    assert write.startswith("reference all formats / triton bf16 / not fp8_ds_mla: fp8_ds_mla needs an exact ")
    named = json.loads(cli("list", "--formats", "dsv4_584", "--json")[1])["cases"]
    assert {case["format"] for case in named} == {"dsv4_584:pow2"}


@pytest.mark.parametrize("command", ["kernels --dry-run", "list"])
@pytest.mark.parametrize("option", ["--vllm-library", "--flash-mla-library"])
def test_a_library_that_is_not_there_is_a_mistake(cli, tmp_path, monkeypatch, command, option):
    """One that is there and cannot be loaded is a reason to skip its rows."""
    missing = tmp_path / "missing.so"
    expected = (2, "", f"dsmla-bench: {option} {missing}: no such file; name the compiled operators, a .so\n")
    assert cli(*command.split(), option, missing) == expected
    monkeypatch.setenv(f"DSMLA_BENCH{option.replace('-', '_')[1:].upper()}", str(missing))
    assert cli(*command.split()) == expected


def test_env_names_packages_and_nothing_private(cli, monkeypatch):
    private = {"HOME": "/home/jane-doe", "USER": "jane-doe", "LOGNAME": "jane-doe", "HF_TOKEN": "hf_private"}
    for name, value in private.items():
        monkeypatch.setenv(name, value)
    code, out, _ = cli("env")
    facts = cli("env", "--json")[1]
    assert code == 0
    assert f"torch: {version('torch')}" in out
    assert json.loads(facts)["packages"]["torch"] == version("torch")
    for text in (out, facts):
        assert not [value for value in (*private.values(), str(Path.cwd())) if value in text]
        assert not re.search(r'(^|[\s"=:])/\w', text)


# Report


def test_report_prints_tables_and_writes_files(cli, tmp_path):
    run = run_of(tmp_path / "runs", h200_sweep())
    code, out, _ = cli("report", run.path, "--out", tmp_path / "report")
    assert code == 0
    assert "write · fp8_ds_mla" in out
    assert "skipped: vllm nvfp4_ds_mla:rn (write, gather; 20 rows): requires SM100 (Blackwell); got SM90" in out
    written = [Path(line.removeprefix("wrote ")) for line in out.splitlines() if line.startswith("wrote ")]
    assert {path.name for path in written} >= {"report.md", "rows.csv", "table.csv", "us.png", "gbps.png"}
    assert all(path.parent == tmp_path / "report" and path.stat().st_size for path in written)


def test_report_takes_the_newest_run_and_gives_its_rows_as_json(cli, tmp_path):
    for tokens in (1, 128):
        run = run_of(
            tmp_path / "runs", [timed(case(tokens=tokens), 5.0), refused(case(provider="vllm"), "skipped", "x")]
        )
        run.path.rename(tmp_path / "runs" / f"2026112{tokens % 10}T000000-000000")
    before = sorted((tmp_path / "runs").rglob("*"))
    code, out, _ = cli("report", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["run"] == "runs/20261128T000000-000000"
    assert document["manifest"]["run_id"] == run.run_id
    assert [row["tokens"] for row in document["rows"]] == [128, 128]
    assert [row["us"] for row in document["rows"]] == [5.0, None]
    assert sorted((tmp_path / "runs").rglob("*")) == before


def test_report_of_a_run_without_times_says_why_and_is_fine(cli, tmp_path):
    run = run_of(tmp_path, compiled_sweep(), not_timed="this machine has no sm_90 device")
    code, out, _ = cli("report", run.path)
    assert code == 0
    assert out.startswith("Nothing was timed: this machine has no sm_90 device\n")


def test_output_that_knows_ascii_only(tmp_path):
    """Case D12: the console falls back to stand-ins, files and JSON are UTF-8."""
    run = run_of(tmp_path, [timed(case(tokens=tokens), 5.0 * tokens, device=LABEL) for tokens in (1, 128)], note=LABEL)
    printed = run_command("report", run.path, **ASCII)
    assert printed.returncode == 0, printed.stderr
    assert r"device H200 - Pr\xfcfstand \u8bd5\u9a8c us" in printed.stdout
    assert "tokens us GB/s floor %" in squeezed(printed.stdout)
    assert printed.stdout.isascii()
    for name in ("report.md", "rows.csv"):
        assert LABEL in (run.path / "report" / name).read_text(encoding="utf-8")
    assert (run.path / "report" / "us.png").stat().st_size > 0
    printed = run_command("report", run.path, "--json", **{**ASCII, "PYTHONIOENCODING": "latin-1"})
    document = json.loads(printed.stdout)
    assert (document["manifest"]["note"], document["rows"][0]["device"]) == (LABEL, LABEL)


def test_folders_that_the_locale_cannot_decode(tmp_path):
    out = tmp_path / "Prüfstand"
    axes = ["--ops", "write", "--formats", "fp8", "--providers", "triton", "--tokens", 1, "--page-orders", "ordered"]
    done = run_command("kernels", "--arch", "sm80", *axes, "--out", out, "--json", **ASCII)
    assert done.returncode == 0, done.stderr
    [path] = out.iterdir()
    assert json.loads(done.stdout)["run"] == str(path)
    assert str(out) in Run.load(path).manifest["argv"]


# Kernels


@pytest.fixture
def small(tmp_path):
    """Options of a sweep over eight cases on an architecture that is not here."""
    axes = ["--ops", "write,gather", "--formats", "bf16,nvfp4_ds_mla", "--providers", "reference,triton", "--tokens", 5]
    return ["kernels", "--arch", ABSENT.name, *axes, "--page-orders", "shuffled", "--out", tmp_path / "runs"]


def test_kernels_without_a_device_checks_compiles_and_says_that_nothing_was_timed(cli, small, tmp_path):
    code, out, err = cli(*small, "--json")
    assert err == ""
    document = json.loads(out)
    rows = {(row["operation"], row["format"], row["provider"]): row for row in document["rows"]}
    assert code == 0
    assert len(rows) == 8
    for (operation, _, provider), row in rows.items():
        assert row["us"] is row["gbps"] is None
        if provider == "reference":
            assert row["status"] == "skipped"
            continue
        assert (row["status"], row["bytes_differing"], row["spilled_bytes"]) == ("compiled", 0, 0)
        assert row["bytes_compared"] > 0
        assert row["registers"] > 0
        moved = row["bytes_read"] + row["bytes_written"]
        assert row["predicted_us"] == pytest.approx(moved / row["published_gbps"] / 1e3)
        assert row["requests"] == (5 if operation == "gather" else 1)
    [run] = (tmp_path / "runs").iterdir()
    assert document["run"] == str(run)
    assert Run.load(run).records() == document["rows"]
    assert (run / "rows.parquet").is_file()
    _, out, _ = cli("report", run)
    assert re.match(rf"Nothing was timed: this machine has no {ABSENT.label} device \(found .*\); ", out)


def test_a_sweep_of_skipped_rows_says_why_and_is_fine(cli):
    """Case A15: sm_80 has no e4m3 conversion."""
    axes = [
        "--ops",
        "write",
        "--formats",
        "fp8",
        "--providers",
        "triton",
        "--tokens",
        "1,2",
        "--page-orders",
        "ordered",
    ]
    code, out, _ = cli("kernels", "--arch", "sm80", *axes)
    assert code == 0
    assert out.startswith("Nothing was timed: ")
    reason = "fp8 needs an exact conversion that sm_80 lacks; the first with it is sm_90"
    assert f"skipped: triton fp8:per_tensor (write; 2 rows): {reason}" in out.splitlines()
    assert re.fullmatch(r"run: runs/\S+", out.splitlines()[-1])


def test_a_required_device_that_is_missing_gives_3_and_no_run(cli, small, tmp_path):
    code, out, err = cli(*small, "--require-device")
    assert (code, out) == (3, "")
    assert err == f"dsmla-bench: no {ABSENT.label} device here, and --require-device asks for one\n"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "ok"])
def test_one_row_that_is_a_finding_makes_the_exit_code_1(tmp_path, status):
    run = run_of(tmp_path, [timed(case(tokens=1), 5.0), refused(case(), status, "why")])
    assert exit_code(run) == (0 if status in ("skipped", "compiled", "unresolved") else 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["kernels", "--formats", "fp4"], "no format 'fp4'; available: bf16:raw, fp8_ds_mla:pow2"),
        (["kernels", "--formats", "fp8_ds_mla:rn"], "no format 'fp8_ds_mla:rn'; available: "),
        (["kernels", "--ops", "fuse"], "no operation 'fuse'; available: write, gather"),
        (["kernels", "--providers", "trt"], "no provider 'trt'; available: reference, triton, "),
        (["kernels", "--page-orders", "random"], "no page order 'random'; available: ordered, shuffled"),
        (["kernels", "--l2", "warm"], "no L2 state 'warm'; available: cold, hot"),
        (["kernels", "--arch", "hopper"], "architecture 'hopper' is not of the form sm90; known: sm80, "),
        (["kernels", "--tokens", "many"], "--tokens must be whole numbers with commas between, found 'many'"),
        (["kernels", "--tokens", ","], "--tokens must be whole numbers with commas between, found ','"),
        (["kernels", "--tokens", "1,0"], "tokens must be from 1 to 2147483647, found (1, 0)"),
        (["kernels", "--block-sizes", "-1"], "--block-sizes must be whole numbers with commas between, found '-1'"),
        (["list", "--arch", "90"], "architecture '90' is not of the form sm90; known: sm80, "),
        (["formats", "--format", "fp4"], "no format 'fp4'; available: "),
        (["report", "nowhere"], "nowhere: not a run (no manifest.json); give the folder that "),
        (["report"], "runs: holds no run; measure one with `dsmla-bench kernels`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence_exit_code_2_and_no_run(cli, tmp_path, arguments, sentence):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"dsmla-bench: {sentence}")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_a_mistake_too(cli, small, tmp_path):
    (tmp_path / "runs").touch()
    code, out, err = cli(*small)
    assert (code, out) == (2, "")
    assert err.startswith(f"dsmla-bench: {tmp_path / 'runs'}: cannot create a run here (")
    assert err.count("\n") == 1


def test_ctrl_c_keeps_the_finished_rows_and_says_how_to_go_on(tmp_path):
    """Case D3: exit code 130, and the run resumes."""
    arguments = ["kernels", "--arch", "sm120", "--providers", "triton", "--out", str(tmp_path), "--tokens", "1,2,3,4,5"]
    command = [sys.executable, "-m", "dsmla_bench", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=compiling_environment()
    )
    deadline = time.monotonic() + 120
    while not any(file.stat().st_size for file in tmp_path.glob("*/rows.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    [path] = tmp_path.iterdir()
    assert process.returncode == 130, errors
    assert f"go on with --resume {path}" in errors
    run = Run.load(path)
    assert run.manifest["interrupted"] is True
    assert 0 < len(run.measurements) < 80
