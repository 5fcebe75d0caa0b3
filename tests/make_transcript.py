"""Write docs/transcript.md by walking a newcomer's path: ``python tests/make_transcript.py [FOLDER]``.

The tree is copied to FOLDER/dsmla-bench and installed there into a fresh virtual environment. That environment also
sees the packages of the Python that runs this, so that pip finds torch and need not download it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_BEHIND = shutil.ignore_patterns(".*", "__pycache__", "runs", "dist", "build")
WIDEST = 150
TITLE = """# Transcript of a fresh machine

A newcomer's path from a clone, on a machine without a GPU: run by `python tests/make_transcript.py`, which wrote this
page. torch and the other dependencies were on the machine already; otherwise pip downloads them. An ellipsis (…) stands
for what is left out, and progress on standard error is left out too. Nothing else is changed.
"""


@dataclass(frozen=True)
class Step:
    """A command, the sentence above it, and how many of its first and last lines of output are shown."""

    says: str
    command: str
    first: int = 60
    last: int = 10


INSTALL = "env/bin/pip install '.[accuracy]'"
ERROR = "dsmla-bench error --sigma 1 --formats fp8,fp8_ds_mla --out errors"
PLANTED = "dsmla-bench compare examples/ab/planted/base examples/ab/planted/head"
STEPS = (
    Step("An environment, and the package with what `accuracy` needs:", "python3 -m venv env"),
    Step("", INSTALL, 0, 1),
    Step("", ". env/bin/activate"),
    Step("What can be stored:", "dsmla-bench formats"),
    Step("Where a field lies:", "dsmla-bench formats --format nvfp4_ds_mla"),
    Step("Who serves what on an H100 or H200, and why not:", "dsmla-bench list --arch sm90", 44, 4),
    Step("Every question once. Without a GPU nothing is timed, and it says so:", "dsmla-bench demo", 46, 29),
    Step("What two formats cost in numbers, twice:", ERROR, 5, 1),
    Step("", ERROR, 0, 1),
    Step("The same seed gives the same errors:", "dsmla-bench compare errors/*"),
    Step("Two runs of an H200, of which the second has a slow-down planted:", PLANTED),
    Step("What can be asked of scores:", "dsmla-bench accuracy --help", 20, 4),
    Step("The newest run as a page, tables and pictures:", "dsmla-bench report", 12, 10),
)


def main(folder: Path) -> None:
    """Take the steps in a copy of the tree and write what they print."""
    clone = folder / "dsmla-bench"
    shutil.copytree(ROOT, clone, ignore=LEFT_BEHIND)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    parts = [TITLE]
    for step in STEPS:
        done = subprocess.run(
            ["bash", "-c", f"if [ -d env ]; then . env/bin/activate; fi; {step.command}"],
            cwd=clone,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
        if step.command.startswith("python3 -m venv"):
            lend_packages(clone / "env")
        parts.append(shown(step, done.stdout, done.returncode))
        print(f"exit code {done.returncode}: {step.command}", flush=True)
    (ROOT / "docs" / "transcript.md").write_text("\n".join(parts), encoding="utf-8")


def lend_packages(environment: Path) -> None:
    """Let a new environment see the packages of this one."""
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")


def shown(step: Step, output: str, exit_code: int) -> str:
    """A step as Markdown: sentence, command, output, and the exit code where it is not 0."""
    lines = [line.rstrip() for line in output.strip("\n").split("\n")]
    if len(lines) > step.first + step.last + 1:
        lines = [*lines[: step.first], "…", *lines[len(lines) - step.last :]]
    cut = [line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…" for line in lines]
    session = "\n".join(["```", f"$ {step.command}", *(cut if output else []), "```"])
    said = [f"{step.says}\n"] if step.says else []
    failed = [f"\nExit code {exit_code}."] if exit_code else []
    return "\n".join([*said, session, *failed, ""])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
