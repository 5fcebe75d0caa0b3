"""Third-party packages: those that announce formats and providers, made of the files in ``toys``, and hidden ones."""

import importlib.util
import shutil
import tomllib
from pathlib import Path

TOYS = Path(__file__).parent / "toys"


def hide(monkeypatch, *packages):
    """Let these packages look as if they were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in packages else find(name))


def install(folder, package, entry_points):
    """Put the toys into ``folder``, which is to be on the import path, with the metadata of an installed ``package``.

    ``entry_points`` maps a group to what it loads: {"dsmla_bench.formats": "toy_format:FORMATS"}.
    """
    shutil.copytree(TOYS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    describe(folder, package, "1.0", {group: {package: value} for group, value in entry_points.items()})


def install_project(folder, project):
    """Put the modules of a ``project`` folder into ``folder``, with the metadata that its pyproject.toml asks for."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for module in project.glob("*.py"):
        shutil.copy(module, folder)
    describe(folder, about["name"], about["version"], about["entry-points"])


def describe(folder, package, version, entry_points):
    """Write the metadata of an installed ``package`` into ``folder``; ``entry_points``: group → name → value."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in members.items()), ""])
        for group, members in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
