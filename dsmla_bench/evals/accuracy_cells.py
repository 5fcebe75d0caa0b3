"""What an accuracy run has finished: one file per (variant, task), written whole, with everything that decided it.

    RUN/cells/<variant>.<task>.<hash>.json   {"key": {…}, "found": {…}}

A kill leaves whole files only. What a cell holds is used again only by a run whose key is the same in every part: model
and tokenizer files, the task's documents and settings, what the format makes of latents, versions, and this code.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from typing import Any

from dsmla_bench.places import Place, read, write_whole
from dsmla_bench.results import Run


@dataclass(frozen=True)
class Cells:
    """The cells below a run's folder."""

    folder: Place

    def load(self, names: tuple[str, ...], key: dict[str, Any]) -> dict[str, Any] | None:
        """What was found under these names and this key; None, with a warning saying why, where a cell does not fit.

        The warning names no cell, so that Python says it once for all that are computed again for one reason.
        """
        file = self._file(names)
        try:
            stored = json.loads(read(file))
            known, found = stored["key"], stored["found"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{file}: is damaged ({error}) and is computed again", stacklevel=2)
            return None
        if different := differing(known, _plain(key)):
            why = f"{different[0]} is another one than before"
            warnings.warn(f"{self.folder.parent}: what was finished is computed again where {why}", stacklevel=2)
            return None
        return dict(found)

    def save(self, names: tuple[str, ...], key: dict[str, Any], found: dict[str, Any]) -> None:
        """Write a cell by replacing it whole. Raises ValueError where ``found`` holds what JSON does not."""
        text = json.dumps({"key": _plain(key), "found": found}, ensure_ascii=False, allow_nan=False)
        write_whole(self._file(names), text.encode("utf-8"))

    def _file(self, names: tuple[str, ...]) -> Place:
        """A name that every file system takes, told apart by a hash where names differ in what it leaves out."""
        readable = ".".join(re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in names)
        short = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]
        return self.folder / f"{readable[:100]}.{short}.json"


def cells_of(run: Run) -> Cells:
    """The cells of a run."""
    return Cells(run.path / "cells")


def differing(known: Any, wanted: dict[str, Any]) -> list[str]:
    """The parts of two keys that are not the same."""
    if not isinstance(known, dict):
        return ["key"]
    return [part for part in sorted(known.keys() | wanted.keys()) if known.get(part) != wanted.get(part)]


def _plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples as lists."""
    return json.loads(json.dumps(value))
