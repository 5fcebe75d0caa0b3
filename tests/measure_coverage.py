"""How many lines of a room its tests run: ``python tests/measure_coverage.py [ROOM ...]``, of those in ``rooms.toml``.

Lines that run in processes of their own, as a worker's do, count too; for that this file is a plugin of pytest. Only
what runs in a process that a test kills, or on a node of a cluster, is not seen. Exit code 1 when a room has less than
90 %, 2 when a test fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = Path(__file__).with_name("rooms.toml")
LEAST_PERCENT = 90.0
CONFIGURATION = """
[run]
source = dsmla_bench
parallel = true
patch = subprocess
sigterm = true
data_file = {folder}/data
"""


def measured(room: dict[str, list[str]], folder: Path) -> dict[str, Any]:
    """File → coverage.py's summary, of the files of a room. Raises CalledProcessError when a test fails."""
    configuration = folder / "coveragerc"
    configuration.write_text(CONFIGURATION.format(folder=folder), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COVERAGE_RCFILE": str(configuration), "PYTHONPATH": path}
    tests = [f"tests/{test}" for test in room["tests"]]
    report = folder / "report.json"
    for arguments in (
        ["run", "-m", "pytest", "-p", Path(__file__).stem, "-q", "-n", "0", "-m", "not slow", *tests],
        ["combine", "--quiet"],
        ["json", "--quiet", "-o", str(report)],
    ):
        subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, env=environment, check=True)
    files = json.loads(report.read_text(encoding="utf-8"))["files"]
    wanted, unwanted = (tuple(f"dsmla_bench/{path}" for path in room.get(key, ())) for key in ("files", "without"))
    return {file: found for file, found in files.items() if file.startswith(wanted) and not file.startswith(unwanted)}


def pytest_configure() -> None:
    """Let a worker write down what it ran: who ends it, and all that it started, asks for that and does not kill."""
    send = os.killpg
    os.killpg = lambda group, number: send(group, signal.SIGTERM if number == signal.SIGKILL else number)


def percent(summaries: list[dict[str, int]]) -> float:
    """The share of lines that were run, in percent."""
    lines = sum(summary["num_statements"] for summary in summaries)
    return 100 * sum(summary["covered_lines"] for summary in summaries) / lines


def main(names: list[str]) -> int:
    """Measure the rooms of these names, all by default, and print each with its files below 90 %."""
    rooms, poor = tomllib.loads(ROOMS.read_text(encoding="utf-8")), []
    for name in names or list(rooms):
        with tempfile.TemporaryDirectory() as folder:
            try:
                files = measured(rooms[name], Path(folder))
            except subprocess.CalledProcessError:
                print(f"{name}: the tests fail, so nothing was measured")
                return 2
        whole = percent([found["summary"] for found in files.values()])
        print(f"{name}: {whole:.1f} % of the lines")
        for file, found in files.items():
            if found["summary"]["num_statements"] and percent([found["summary"]]) < LEAST_PERCENT:
                print(f"  {percent([found['summary']]):5.1f} % {file}, without lines {_ranges(found['missing_lines'])}")
        poor += [name] if whole < LEAST_PERCENT else []
    if poor:
        print(f"less than {LEAST_PERCENT:g} %: {', '.join(poor)}")
    return 1 if poor else 0


def _ranges(lines: list[int]) -> str:
    """ "3-5, 9" of 3, 4, 5 and 9."""
    starts = [line for line in lines if line - 1 not in lines]
    ends = [line for line in lines if line + 1 not in lines]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
