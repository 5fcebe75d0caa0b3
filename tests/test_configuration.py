"""Options from flags, the environment and the options file: who wins, what is refused, what a run records."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from builders import run_of
from processes import compiling_environment, run_python

from dsmla_bench.cli import app
from dsmla_bench.cli.common import recorded, without_credentials
from dsmla_bench.cli.options_file import OVERWRITES, RUNS_CODE
from dsmla_bench.cli.settings import invocation, own_options
from dsmla_bench.results import Run

FILE = "dsmla-bench.toml"
DOCUMENT = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")


def dumped(cli, *arguments):
    """The options of a command as ``--dump-config`` prints them, and where each came from."""
    code, out, err = cli(*arguments, "--dump-config")
    assert (code, err) == (0, "")
    return tomllib.loads(out), dict(re.findall(r"^([\w-]+) = .* # (\w+)$", out, re.MULTILINE))


def commands(group=None, path=()):
    """(path, command) of every command that runs something."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


NEEDED = {
    "compare": ["base", "head"],
    "dashboard": ["--store", "history", "--out", "site"],
    "history.add": ["run", "--store", "history"],
    "history.list": ["--store", "history"],
    "history.check": ["--store", "history"],
}
"""What commands cannot do without."""


# Who wins


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(cli, tmp_path, monkeypatch):
    (tmp_path / FILE).write_text("[kernels]\nprocesses = 2\nseed = 2\ntokens = [1, 8192]\n")
    monkeypatch.setenv("DSMLA_BENCH_KERNELS_PROCESSES", "3")
    monkeypatch.setenv("DSMLA_BENCH_KERNELS_SEED", "3")
    values, sources = dumped(cli, "kernels", "--processes", "4")
    kernels = values["kernels"]
    assert [kernels[key] for key in ("processes", "seed", "tokens", "requests")] == [4, 3, "1,8192", 8]
    found = [sources[key] for key in ("processes", "seed", "tokens", "requests")]
    assert found == ["flag", "environment", "file", "default"]


def test_a_named_file_takes_the_place_of_the_one_in_the_folder(cli, tmp_path, monkeypatch):
    (tmp_path / FILE).write_text("this is no TOML")
    (tmp_path / "other.toml").write_text("[kernels]\nseed = 5\n")
    assert dumped(cli, "kernels", "--config", "other.toml")[0]["kernels"]["seed"] == 5
    for command in (["accuracy", "reference"], ["history", "list", "--store", "x"]):
        assert cli(*command, "--config", "other.toml", "--dump-config")[0] == 0
        assert cli(*command, "--config=other.toml", "--dump-config")[0] == 0
        assert cli(*command, "--dump-config")[0] == 2, "what lies there is read else"
    monkeypatch.setenv("DSMLA_BENCH_CONFIG", "other.toml")
    assert dumped(cli, "kernels")[0]["kernels"]["seed"] == 5
    (tmp_path / "third.toml").write_text("[kernels]\nseed = 6\n")
    assert dumped(cli, "--config", "third.toml", "kernels")[0]["kernels"]["seed"] == 6


def test_options_of_every_command_stand_before_or_behind_it(cli):
    assert cli("--dump-config", "list") == cli("list", "--dump-config")


def test_flags_several_values_and_nested_commands_in_the_file(cli, tmp_path):
    server = ["bf16=http://a", "fp8_ds_mla=http://b"]
    tables = f'[accuracy]\nserver = {json.dumps(server)}\nrepeat = false\n[history.check]\nstore = "h"\njson = true\n'
    (tmp_path / FILE).write_text(tables)
    accuracy = dumped(cli, "accuracy")[0]["accuracy"]
    assert (accuracy["server"], accuracy["repeat"]) == (server, False)
    assert dumped(cli, "history", "check") == (
        {"history": {"check": {"store": "h", "json": True}}},
        {"store": "file", "json": "file"},
    )


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=".".join)
def test_what_is_dumped_is_a_file_that_gives_the_same_options(cli, tmp_path, path):
    """Of every command and option, so that one that is added has a key, a variable and a place in the file."""
    needed = NEEDED.get(".".join(path), [])
    _, out, _ = cli(*path, *needed, "--dump-config")
    (tmp_path / FILE).write_text(out)
    words = [word for word in needed if word in ("base", "head", "run")]
    code, again, err = cli(*path, *words, "--config", FILE, "--dump-config")
    assert (code, err) == (0, "")
    assert tomllib.loads(again) == tomllib.loads(out)
    for key, option in own_options(dict(commands())[path]).items():
        assert f"\n{key} = " in out or f"\n# {key} is" in out
        assert option.envvar.startswith("DSMLA_BENCH_")


# What is refused


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[kernels]\ntoken = 1", "[kernels] token is neither an option nor a command; the nearest is tokens"),
        (
            "[kernels]\nblock_sizes = 1",
            "[kernels] block_sizes is neither an option nor a command; the nearest is block-sizes",
        ),
        ("[kernel]\nseed = 1", "kernel is neither an option nor a command; the nearest is [kernels]"),
        ("[history]\nstore = 'h'", "[history] store is neither an option nor a command; the nearest is [history."),
        ("seed = 1", "seed is neither an option nor a command; the nearest is "),
        ("[kernels.seed]\na = 1", "[kernels] seed is neither an option nor a command; the nearest is seed"),
        ("[kernels]\ntokens = true", "[kernels] tokens must be text, a number or a list of them, found True"),
        ("[kernels]\ntokens = [[1]]", "[kernels] tokens must be text, a number or a list of them, found [[1]]"),
        ("[kernels]\ndry-run = 1", "[kernels] dry-run must be true or false, found 1"),
        ("[kernels", "is no TOML (Expected ']'"),
        ("x = " + "[" * 100_000, "is no TOML ("),
        ("#" * 2**14 + "\n", "is no TOML (it is larger than 16384 bytes)"),
        ("[kernels]\nseed = 0x" + "f" * 5000, "[kernels] seed must be a number of 64 bits"),
        ("[kernels]\ndry-run = 0x" + "f" * 5000, "[kernels] dry-run must be a number of 64 bits"),
        ("[other]\nx = 1", "other is neither an option nor a command; "),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(cli, tmp_path, text, sentence):
    (tmp_path / FILE).write_text(text)
    code, out, err = cli("kernels", "--dry-run")
    assert (code, out) == (2, "")
    assert err.startswith(f"dsmla-bench: {FILE}: {sentence}")
    assert err.count("\n") == 1


def test_what_lies_there_under_its_name_and_is_no_file_stops_nobody_for_ever(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(FILE)
    command = [sys.executable, "-m", "dsmla_bench", "list"]
    found = subprocess.run(
        command, env=compiling_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (found.returncode, found.stderr) == (
        2,
        f"dsmla-bench: {FILE}: is no ordinary file; remove it, or name another with --config\n",
    )


@pytest.mark.parametrize("key", sorted(RUNS_CODE))
def test_a_file_that_only_lies_there_cannot_make_code_of_others_run(cli, tmp_path, key):
    """Case: `dsmla-bench kernels` in a folder that somebody else filled."""
    path = next(path for path, command in commands() if key in own_options(command))
    value = "true" if key == "trust-remote-code" else "'x'"
    (tmp_path / FILE).write_text(f"[{'.'.join(path)}]\n{key} = {value}\n")
    code, _, err = cli("kernels", "--dump-config")
    assert (code, f"[{path[0]}] {key} makes code of others run, which a file that only lies here may not" in err) == (
        2,
        True,
    )
    code, out, _ = cli(*path, "--config", FILE, "--dump-config")
    assert (code, f"\n{key} = " in out) == (0, True)


@pytest.mark.parametrize("name", sorted(OVERWRITES))
def test_a_file_that_only_lies_there_cannot_overwrite_files(cli, tmp_path, name):
    command, key = name.split(".")
    arguments = [command, *NEEDED.get(command, [])]
    arguments = arguments[: arguments.index("--out")] if "--out" in arguments else arguments
    (tmp_path / FILE).write_text(f"[{command}]\n{key} = 'precious.md'\n")
    code, _, err = cli(*arguments, "--dump-config")
    assert (code, f"[{command}] {key} overwrites files, which a file that only lies here may not ask for" in err) == (
        2,
        True,
    )
    assert cli(*arguments, "--config", FILE, "--dump-config")[0] == 0
    (tmp_path / FILE).unlink()
    assert cli(*arguments, f"--{key}", "mine.md", "--dump-config")[0] == 0


def test_every_option_that_runs_code_is_known_to_do_so():
    named = {key for _, command in commands() for key in own_options(command)}
    assert named >= RUNS_CODE
    suspicious = {key for key in named if key.endswith("-library") or "code" in key or key.endswith("-options")}
    assert suspicious <= RUNS_CODE


@pytest.mark.parametrize("file", ["missing.toml", "."])
def test_a_named_file_that_cannot_be_read_is_a_mistake(cli, file):
    code, _, err = cli("kernels", "--config", file)
    assert (code, err.startswith(f"dsmla-bench: {file}: cannot be read (")) == (2, True)


def test_a_value_of_the_wrong_type_says_where_it_came_from(cli, tmp_path, monkeypatch):
    (tmp_path / FILE).write_text("[kernels]\nprocesses = 'many'\n")
    _, _, err = cli("kernels")
    assert err.endswith(f", found 'many' (in {FILE}); see dsmla-bench kernels --help\n")
    monkeypatch.setenv("DSMLA_BENCH_KERNELS_PROCESSES", "0")
    _, _, err = cli("kernels")
    assert err.endswith(", found '0' (in DSMLA_BENCH_KERNELS_PROCESSES); see dsmla-bench kernels --help\n")


def test_a_value_that_a_command_refuses_names_what_the_file_sets(cli, tmp_path):
    (tmp_path / FILE).write_text("[kernels]\nformats = 'fp4'\nseed = 1\n")
    _, _, err = cli("kernels")
    assert err.startswith("dsmla-bench: no format 'fp4'; available: ")
    assert err.endswith(f" ({FILE} sets formats, seed)\n")


def test_a_variable_that_sets_nothing_is_warned_of(cli, monkeypatch):
    monkeypatch.setenv("DSMLA_BENCH_LIST_ARC", "sm80")
    code, _, err = cli("list", "--dump-config")
    nearest = "DSMLA_BENCH_LIST_ARCH"
    assert (code, err) == (0, f"dsmla-bench: DSMLA_BENCH_LIST_ARC sets no option; the nearest variable is {nearest}\n")


# What a run records


def test_a_run_records_every_option_and_its_source(cli, tmp_path, monkeypatch):
    (tmp_path / FILE).write_text("[compile]\ntokens = [1]\n")
    monkeypatch.setenv("DSMLA_BENCH_COMPILE_FORMATS", "bf16")
    code, out, _ = cli("compile", "--arch", "sm90", "--ops", "write", "--workers", 1)
    manifest = Run.load(out.rpartition("run: ")[2].strip()).manifest
    assert (code, manifest["options_file"]) == (0, FILE)
    options = manifest["options"]
    assert options["tokens"] == {"value": "1", "source": "file"}
    assert options["formats"] == {"value": "bf16", "source": "environment"}
    assert options["workers"] == {"value": 1, "source": "flag"}
    assert options["against"] == {"value": None, "source": "default"}
    assert set(options) == set(own_options(typer.main.get_command(app).commands["compile"]))


def test_no_password_of_a_url_is_recorded():
    options = {"server": ["bf16=http://me:pw@a:80/v1"], "store": "s3://key:secret@bucket/x@y", "seed": 1}
    kept = {"server": ["bf16=http://a:80/v1"], "store": "s3://bucket/x@y", "seed": 1}
    assert without_credentials(options) == kept


def test_a_run_made_without_the_command_line_records_no_options(tmp_path):
    with invocation():
        assert "options" not in recorded(run_of(tmp_path, [])).manifest


def test_settings_end_with_the_command(cli):
    cli("list", "--dump-config", "--quiet")
    script = "from dsmla_bench.cli.settings import current; assert not current().quiet"
    assert run_python("-c", script).returncode == 0
    assert cli("list", "--arch", "sm90")[1].startswith("operations")


# The document


def test_the_document_shows_what_is_printed(cli, tmp_path, monkeypatch):
    (file,) = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    shown = re.search(r"\$ (\w+)=(\S+) dsmla-bench (.*?)\n(.*?)\n```", DOCUMENT, re.DOTALL)
    (tmp_path / FILE).write_text(file)
    monkeypatch.setenv(shown[1], shown[2])
    assert cli(*shown[3].split())[1].rstrip("\n") == shown[4]
    (tmp_path / FILE).write_text("[kernels]\ntoken = 1\n")
    assert f"```\n{cli('kernels')[2]}```" in DOCUMENT


def test_the_document_names_what_a_file_may_not_ask_for():
    ab = {"base", "head", "base-options", "head-options"}
    assert all(f"`--{key}`" in DOCUMENT for key in RUNS_CODE - ab)


def test_an_option_may_be_called_as_anywhere_on_the_command_line_and_once(cli, tmp_path):
    (tmp_path / FILE).write_text('[kernels]\nops = ["write"]\n')
    assert dumped(cli, "kernels")[0]["kernels"]["operations"] == "write"
    (tmp_path / FILE).write_text('[kernels]\nops = ["write"]\noperations = "gather"\n')
    code, _, err = cli("kernels", "--dump-config")
    assert code == 2
    assert "operations is operations by another name, which is there too; keep one" in err
