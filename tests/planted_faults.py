"""The list of faults that the tests must find, from ``planted_faults.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("planted_faults.toml")


@dataclass(frozen=True)
class Fault:
    """A fault of the file ``path``: ``right``, which it holds once, becomes ``wrong``."""

    name: str
    path: str
    right: str
    wrong: str
    tests: tuple[str, ...]


def faults() -> Iterator[Fault]:
    """Every fault of the list."""
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    for group in (*listed["statistics"], *listed["bench"]):
        for description, right, wrong in group["faults"]:
            yield Fault(f"{group['path']}: {description}", group["path"], right, wrong, tuple(group["tests"]))
    for case in listed["case"]:
        yield Fault(f"case {case['id']}: {case['path']}", case["path"], *case["fault"], (case["test"],))
