"""What one invocation was told, and where each of its options got its value.

The first of these that sets an option decides: a flag, an environment variable, the options file, the default.

``current()`` answers from anywhere below the command line, because progress and remarks are printed far from where
options are parsed. It is a context variable: every invocation has settings of its own, and ``invocation()`` makes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperOption

SOURCES = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file", "DEFAULT": "default"}
"""What the parser calls a value's source → what we call it."""


@dataclass
class Settings:
    """The options that every command has.

    quiet      no progress and no remarks on standard error
    debug      a traceback ahead of the sentence on what went wrong
    dump       print the options in place of doing anything
    file       the options file that is read, None where there is none
    named      whether the user named it; else it lay in the current folder
    context    of the command that runs, None before it is parsed
    """

    quiet: bool = False
    debug: bool = False
    dump: bool = False
    file: Path | None = None
    named: bool = False
    context: typer.Context | None = None


@dataclass(frozen=True)
class Resolved:
    """An option's value after everything had its say: plain data, and where it came from (of ``SOURCES``)."""

    key: str
    value: Any
    source: str


_CURRENT: ContextVar[Settings | None] = ContextVar("dsmla-bench settings", default=None)


def current() -> Settings:
    """The settings of this invocation; those without any option set where there is none."""
    return _CURRENT.get() or Settings()


@contextlib.contextmanager
def invocation() -> Iterator[Settings]:
    """New settings, current until this ends."""
    settings = Settings()
    token = _CURRENT.set(settings)
    try:
        yield settings
    finally:
        _CURRENT.reset(token)


def key_of(option: TyperOption) -> str:
    """What an option is called in a file: its first long name without dashes."""
    return next(name for name in option.opts if name.startswith("--")).removeprefix("--")


def own_options(command: Any) -> dict[str, TyperOption]:
    """The options that are a command's own, by key: not hidden ones, nor those that every command has."""
    options = (option for option in command.params if isinstance(option, TyperOption))
    return {key_of(option): option for option in options if option.expose_value and not option.hidden}


def spellings(command: Any) -> dict[str, TyperOption]:
    """The same options by every name that the command line takes for them: operations, and ops."""
    options = own_options(command).values()
    return {name.removeprefix("--"): option for option in options for name in option.opts if name.startswith("--")}


def resolved(context: typer.Context) -> list[Resolved]:
    """The command's own options as they are when it runs, in the order of its help."""
    return [
        Resolved(key, _plain(context.params[option.name]), source_of(context, option))
        for key, option in own_options(context.command).items()
        if option.name in context.params
    ]


def source_of(context: typer.Context, option: TyperOption) -> str:
    """Where the value of an option came from."""
    source = context.get_parameter_source(option.name or "")
    return SOURCES["DEFAULT" if source is None else source.name]


def _plain(value: Any) -> Any:
    """A value for JSON and TOML: paths as text, several values as a list."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
