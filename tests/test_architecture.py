"""The house: an import never runs upward, and reading needs neither torch nor triton."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dsmla_bench

PACKAGE = Path(dsmla_bench.__file__).parent
READING = {"places", "column_types", "rows", "measurement_log", "summary", "results", "history_rows", "history"}
ANYWHERE = {"error_text"}
"""Rooms that every room may import, and that import none."""
MAY_IMPORT = {
    "error_text": set(),
    "kernels": {"kernels"},
    "places": {"places"},
    "column_types": set(),
    "rows": {"column_types", "rows"},
    "measurement_log": {"places", "rows"},
    "summary": {"rows", "summary"},
    "results": READING - {"history", "history_rows"},
    "history_rows": READING - {"history"},
    "history": READING,
    "bench": {"kernels", "bench", *READING},
    "evals": {"kernels", "bench", "evals", *READING},
    "reports": {"reports", *READING},
    "cli": {"kernels", "bench", "evals", "reports", "cli", *READING},
    "__init__": set(),
    "__main__": {"cli"},
}
"""Room → the rooms that its files may import, beside ANYWHERE. A new room needs a line here, at its floor."""
WITHOUT_TORCH = (*ANYWHERE, *READING, "reports")
SOURCES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(source, package):
    """The full names of all modules (and names in them) that ``source``, a module of ``package``, imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(module):
    """The room of ``dsmla_bench`` that a full name lies in; None for other packages and the package's own names."""
    root, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    exists = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").exists()
    return room if root == "dsmla_bench" and room and exists else None


def place(path):
    """A file's room and the package that its relative imports start from."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0], ".".join(("dsmla_bench", *parts[:-1]))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_runs_upward(path):
    room, package = place(path)
    modules = set(imported_modules(path.read_text(encoding="utf-8"), package))
    allowed = MAY_IMPORT[room] | ANYWHERE
    upward = {module for module in modules if (target := room_of(module)) and target not in allowed}
    assert not upward, f"{path.name} imports upward: {', '.join(sorted(upward))}"
    if room in WITHOUT_TORCH:
        assert not {module for module in modules if module.split(".")[0] in ("torch", "triton")}


@pytest.mark.parametrize(
    "source",
    [
        "import dsmla_bench.reports.tables",
        "from dsmla_bench import reports",
        "from dsmla_bench.reports.tables import significant",
        "from .. import reports",
        "from ..reports import tables",
        "def late():\n    from dsmla_bench.reports import tables",
    ],
)
def test_the_check_sees_every_way_to_import(source):
    assert {room_of(module) for module in imported_modules(source, "dsmla_bench.kernels")} == {"reports"}


def test_reading_and_reporting_need_neither_torch_nor_triton():
    modules = [
        ".".join(("dsmla_bench", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in SOURCES
        if place(path)[0] in WITHOUT_TORCH and path.name != "__init__.py"
    ]
    assert "dsmla_bench.reports.report" in modules
    script = f"import sys, {', '.join(modules)}; print(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
