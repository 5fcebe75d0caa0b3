"""The example workflows: whole, and every dsmla-bench command in them is one that exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from dsmla_bench.cli import app

WORKFLOWS = sorted((Path(__file__).parents[1] / "examples" / "ci").glob("*.yml"))
each_workflow = pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)


def workflow(file):
    """The parsed file. YAML 1.1 reads the key ``on`` as true."""
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def steps(file):
    return [step for job in workflow(file)["jobs"].values() for step in job["steps"]]


def commands(file):
    """The arguments of every ``dsmla-bench …`` that a step runs."""
    lines = [line for step in steps(file) for line in step.get("run", "").splitlines()]
    found = [re.search(r"(?:^|/)dsmla-bench (.*)$", line.strip()) for line in lines]
    return [re.split(r" \|\| | > ", match[1])[0] for match in found if match]


def parse(arguments):
    """Parse a command line to its last option, sub-commands included. Raises click's UsageError."""
    command, words = typer.main.get_command(app), shlex.split(arguments)
    while hasattr(command, "commands"):
        name = words.pop(0)
        assert name in command.commands, f"no command {name}"
        command = command.commands[name]
    return command.make_context(command.name, words)


@each_workflow
def test_a_workflow_is_whole(file):
    found = workflow(file)
    assert {"name", "on", "permissions", "jobs"} <= set(found)
    for job in found["jobs"].values():
        assert {"runs-on", "steps"} <= set(job)
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
        assert all("@v" in step["uses"] for step in job["steps"] if "uses" in step)


@each_workflow
def test_every_command_of_a_workflow_parses(file):
    assert len(commands(file)) >= 3
    for command in commands(file):
        parse(command)


def test_a_command_that_does_not_exist_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        parse("history add runs --stor here")
    with pytest.raises(AssertionError, match="no command ad"):
        parse("history ad runs")


def test_the_three_workflows_ask_what_they_are_for():
    asked = {file.stem: {command.split()[0] for command in commands(file)} for file in WORKFLOWS}
    assert asked == {
        "kernels": {"compile", "report"},
        "gate": {"selftest", "ab", "report"},
        "nightly": {"selftest", "kernels", "error", "history", "dashboard", "report"},
    }


@each_workflow
def test_a_job_on_a_gpu_has_it_to_itself(file):
    on_gpu = any("gpu" in job["runs-on"] for job in workflow(file)["jobs"].values())
    assert not on_gpu or workflow(file)["concurrency"]["group"] == "gpu"
