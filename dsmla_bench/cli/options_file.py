"""The options file ``dsmla-bench.toml``: a table per command, a key per option, named as on the command line.

    [kernels]
    formats = ["bf16", "fp8_ds_mla"]
    processes = 3

    [history.add]
    store = "s3://bucket/history"

Keys are strict: one that is no option is refused. So is an option that makes code of others run (``RUNS_CODE``) or that
overwrites files (``OVERWRITES``), unless the user named the file: one that only lies in a folder must not do what its
user did not ask for. Lists stand for values with commas between.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

from dsmla_bench.cli.settings import key_of, resolved, spellings

NAME = "dsmla-bench.toml"
MOST_BYTES = 2**14
"""All options of all commands take less than half of that; the parser takes minutes for long dotted keys."""
RUNS_CODE = frozenset(
    {
        *("trust-remote-code", "model-args", "tasks", "vllm-library", "flash-mla-library", "ray"),
        *("base", "head", "base-options", "head-options"),
    }
)
"""Options that name code to run (a folder of tasks may hold functions), or a cluster, whose answers are unpickled."""

OVERWRITES = frozenset(
    {
        *("compare.markdown", "compare.junit", "ab.markdown", "ab.junit"),
        *("export.out", "report.out", "dashboard.out"),
    }
)
"""Options, behind their command, that name files which are written anew. Other places only get new runs."""


def read_options(file: Path, root: TyperGroup, *, named: bool) -> dict[str, Any]:
    """The file's values by command and parameter, as the parser's defaults.

    ``named`` says whether the user named the file. Raises ValueError naming what is wrong.
    """
    if not (named or file.is_file()):
        raise ValueError(f"{file}: is no ordinary file; remove it, or name another with --config")
    try:
        with open(file, "rb") as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES} bytes")
        tables = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); name another with --config") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is no TOML ({error}); correct it, or name another with --config") from error
    return _values(tables, root, _Reading(f"{file}: ", named))


@dataclass(frozen=True)
class _Reading:
    """Where in which file a table is: ``path`` is its command's. ``named``: the user named the file."""

    file: str
    named: bool
    path: tuple[str, ...] = ()

    def place(self, key: str) -> str:
        """What a sentence on a key begins with."""
        return f"{self.file}[{'.'.join(self.path)}] {key}" if self.path else f"{self.file}{key}"


def _values(tables: Mapping[str, Any], command: Any, at: _Reading) -> dict[str, Any]:
    """What the table of ``command`` says, and those below it say."""
    options, commands = spellings(command) if at.path else {}, getattr(command, "commands", {})
    found: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and key in commands:
            found[key] = _values(value, commands[key], replace(at, path=(*at.path, key)))
        elif isinstance(value, dict) or key not in options:
            known = [*options, *(f"[{'.'.join((*at.path, name))}]" for name in commands)]
            raise ValueError(
                f"{at.place(key)} is neither an option nor a command; the nearest is {nearest(key, known)}"
            )
        elif not at.named and (harm := _harm(options[key], value, at)):
            raise ValueError(
                f"{at.place(key)} {harm}, which a file that only lies here may not ask for; give --{key} to the "
                "command, or name the file with --config"
            )
        elif options[key].name in found:
            raise ValueError(f"{at.place(key)} is {key_of(options[key])} by another name, which is there too; keep one")
        else:
            found[str(options[key].name)] = _value(value, options[key], at.place(key))
    return found


def _harm(option: TyperOption, value: Any, at: _Reading) -> str:
    """What an option does that its user has to ask for; "" for one that does no harm, or that is not set."""
    if value in ("", False, option.default):
        return ""
    if key_of(option) in RUNS_CODE:
        return "makes code of others run"
    return "overwrites files" if ".".join((*at.path, key_of(option))) in OVERWRITES else ""


def _value(value: Any, option: TyperOption, place: str) -> Any:
    """A TOML value as an option takes it: a flag true or false, several values a list, anything else text."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(item, int) and not -(2**63) <= item < 2**63 for item in values):
        raise ValueError(f"{place} must be a number of 64 bits")
    if option.is_flag:
        if not isinstance(value, bool):
            raise ValueError(f"{place} must be true or false, found {value!r}")
        return value
    if not all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in values):
        raise ValueError(f"{place} must be text, a number or a list of them, found {value!r}")
    return list(map(str, values)) if option.multiple else ",".join(map(str, values))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like ``name``."""
    return max(known, key=lambda other: difflib.SequenceMatcher(None, name, other).ratio())


def to_toml(context: typer.Context) -> str:
    """The options of the command that runs as an options file, each with where its value came from."""
    import tomlkit

    table = tomlkit.table()
    for option in resolved(context):
        if option.value is None:
            table.add(tomlkit.comment(f"{option.key} is not set"))
        else:
            table.add(option.key, tomlkit.item(option.value).comment(option.source))
    document = tomlkit.document()
    place: Any = document
    *groups, command = path_of(context)
    for group in groups:
        place.add(group, tomlkit.table(is_super_table=True))
        place = place[group]
    place.add(command, table)
    return document.as_string().rstrip("\n")


def path_of(context: Any) -> list[str]:
    """The names that lead to a command, without the program's: ["history", "add"]."""
    return [] if context.parent is None else [*path_of(context.parent), str(context.info_name)]
