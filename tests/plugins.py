"""Third-party packages that announce formats and providers by entry points, made of the files in ``toys``."""

import shutil
from pathlib import Path

TOYS = Path(__file__).parent / "toys"


def install(folder, package, entry_points):
    """Put the toys into ``folder``, which is to be on the import path, with the metadata of an installed ``package``.

    ``entry_points`` maps a group to what it loads: {"dsmla_bench.formats": "toy_format:FORMATS"}.
    """
    shutil.copytree(TOYS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = [f"[{group}]\n{package} = {value}\n" for group, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(groups))
