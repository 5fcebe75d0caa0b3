"""Every ``dsmla-bench …`` that a document shows has options that exist, and runs where that needs nothing special."""

import glob
import re
import shlex
import shutil

import pytest
import typer
from documents import DOCUMENTS, ROOT
from make_transcript import STEPS, shown
from typer.testing import CliRunner

from dsmla_bench.cli import app


def commands() -> list[str]:
    """The arguments of every ``dsmla-bench …`` in the documents' code, blocks and spans alike.

    In a session, a block that begins with a prompt, only what stands after a prompt counts; the rest is output.
    """
    code = [
        part
        for document in DOCUMENTS
        for found in re.finditer(r"```\w*\n(.*?)```|`([^`\n]+)`", document.read_text(encoding="utf-8"), re.DOTALL)
        for part in (found[1] or found[2]).splitlines()
        if part.startswith("$ ") or not (found[1] or "").startswith("$ ")
    ]
    lines = (re.search(r"\bdsmla-bench (.*?)(\s+#.*)?$", line) for line in code)
    return sorted({line[1] for line in lines if line})


SMALLER = {"kernels": ("--dry-run",), "error": ("--tokens", "64", "--formats", "fp8_ds_mla")}
"""What is added to a command so that a test can afford it."""
NOT_RUN = {
    "ab": "needs a GPU; test_ab.py",
    "accuracy": "takes minutes, or needs a checkpoint; test_accuracy.py",
    "compile": "takes minutes; test_cli_compile.py",
    "demo": "takes minutes; make_transcript.py",
    "selftest": "needs a GPU; test_timing.py",
    "tune": "needs a GPU; test_tune.py",
}
"""What continuous integration cannot afford or lacks, and what runs it instead. Of these only the options are read."""
LACKING = ("--ray", "0,2", "FOLDER", "runs/RUN", "my_format")
"""Arguments that stand for a cluster, several GPUs, a checkpoint, an accuracy run and a package to be installed."""


NAMED = ("RUN", "runs/A", "runs/BASE", "runs/20261129T120000-abc123", "errors/1", "errors/2", "before/1")
BASES, HEADS = (
    (*NAMED, "examples/h200", "examples/ab/planted/base"),
    ("runs/B", "runs/HEAD", "examples/ab/planted/head"),
)
"""Names of runs in the documents' commands. Whatever they hold there, here it is one of two small runs."""
LIBRARIES = ("wheels/_C_stable_libtorch.abi3.so", "vllm/_flashmla_C.abi3.so")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A folder that has what the documents' commands name: runs, a history of one of them, and operators' libraries."""
    folder = tmp_path_factory.mktemp("scene")
    runs = dict.fromkeys(BASES, "base") | dict.fromkeys(HEADS, "head")
    for name, side in runs.items():
        shutil.copytree(ROOT / "examples" / "ab" / "planted" / side, folder / name)
    for name in LIBRARIES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no library, so that its rows are skipped")
    added = CliRunner().invoke(app, ["history", "add", str(folder / "RUN"), "--store", str(folder / "history")])
    assert added.exit_code == 0, added.output
    return folder


def expanded(arguments: list[str]) -> list[str]:
    """Arguments as the shell hands them on; a bucket is a folder here."""
    local = [argument.replace("s3://bucket/", "") for argument in arguments]
    return [name for argument in local for name in (sorted(glob.glob(argument)) if "*" in argument else [argument])]


@pytest.mark.parametrize("command", commands())
def test_every_command_parses_and_runs_unless_it_needs_what_is_not_here(command, scene, monkeypatch):
    monkeypatch.chdir(scene)
    name, *arguments = expanded(shlex.split(command))
    typer.main.get_command(app).commands[name].make_context(name, [word for word in arguments if word != "--help"])
    if name in NOT_RUN or set(LACKING) & set(arguments):
        return
    done = CliRunner().invoke(app, [name, *arguments, *SMALLER.get(name, ())])
    assert done.exit_code in (0, 1), done.output
    assert done.exit_code == 0 or name == "compare"


def test_a_command_that_does_not_exist_would_be_noticed():
    kernels = typer.main.get_command(app).commands["kernels"]
    with pytest.raises(Exception, match="No such option"):
        kernels.make_context("kernels", ["--token", "1"])
    assert len(commands()) > 10


def test_what_is_not_run_here_is_run_elsewhere():
    assert all((ROOT / "tests" / why.split("; ")[1]).is_file() for why in NOT_RUN.values())


UNCHANGING = ("dsmla-bench formats", "dsmla-bench compare examples/")
"""Commands whose output depends on nothing but this project."""


@pytest.mark.parametrize(
    "step", [step for step in STEPS if step.command.startswith(UNCHANGING)], ids=lambda step: step.command
)
def test_the_transcript_is_current(step, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(step.command)[1:])
    text = (ROOT / "docs" / "transcript.md").read_text(encoding="utf-8")
    assert shown(step, done.stdout, done.exit_code) in text, "run python tests/make_transcript.py"
