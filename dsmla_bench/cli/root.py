"""What all commands share, put onto every one of them in one place: options, environment variables, the options file.

``Root`` is the group that the command line hangs from. Once its commands are known, each gets

* the options that every command has: ``--config``, ``--dump-config``, ``--quiet``, ``--debug``;
* an environment variable per option, DSMLA_BENCH_COMMAND_OPTION, where the option names none itself;
* its table of the options file as defaults;
* the examples of its docstring on lines of their own;
* ``--dump-config`` ahead of its function.

A command knows nothing of this: it declares its options and gets their values.
"""

from __future__ import annotations

import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dsmla_bench.cli.common import print_text
from dsmla_bench.cli.options_file import NAME, nearest, path_of, read_options, to_toml
from dsmla_bench.cli.settings import current, key_of, own_options

PREFIX = "DSMLA_BENCH"


class Root(TyperGroup):
    """The command line's root."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _equip(self, PREFIX)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as any group; an options file that the command line names counts wherever it is named."""
        settings, named = current(), _named_file(args)
        if named is not None:
            settings.file, settings.named = Path(named), True
        return super().parse_args(ctx, args)


def _equip(command: Any, prefix: str) -> None:
    """Give a command, and those below it, what all of them have."""
    shared = _shared_options()
    for option in [*shared, *(own_options(command).values() if prefix != PREFIX else ())]:
        if option.envvar is None:
            option.envvar = _variable(prefix, key_of(option))
            option.show_envvar = False  # one rule for all, which the end of the help says
    command.params = [*command.params, *shared]
    command.help = _with_examples_on_lines(command.help)
    if command.callback is not None:
        command.callback = _run_or_dump(command.callback)
    for name, below in getattr(command, "commands", {}).items():
        _equip(below, _variable(prefix, name))


def _with_examples_on_lines(text: str) -> str:
    """A help text whose examples, which docstrings give in a sentence, stand on lines of their own, to be copied."""
    before, _, examples = text.partition("Examples: ")
    lines = [f"  {example}" for example in " ".join(examples.split()).split("; ")]
    return "\n".join([f"{before}\b", "Examples:", *lines])  # \b: lines that are not filled anew


def _variable(prefix: str, name: str) -> str:
    """``("DSMLA_BENCH_KERNELS", "page-orders")`` → DSMLA_BENCH_KERNELS_PAGE_ORDERS."""
    return f"{prefix}_{name}".replace("-", "_").upper()


def _run_or_dump(run: Callable[..., Any]) -> Callable[..., Any]:
    """A command's function, or the printing of its options where ``--dump-config`` asks for that."""

    @functools.wraps(run)
    def run_or_dump(**values: Any) -> Any:
        settings = current()
        if settings.dump and settings.context is not None and settings.context.invoked_subcommand is None:
            print_text(to_toml(settings.context))
            raise typer.Exit
        return run(**values)

    return run_or_dump


def _read_config(context: typer.Context, file: Path | None) -> None:
    """Make the options file's table the defaults of a command that is being parsed. Comes before its other options."""
    if context.resilient_parsing:
        return
    settings = current()
    settings.context = context
    if file is not None and not settings.named:
        settings.file, settings.named = file, True
    elif settings.file is None and Path(NAME).exists():
        settings.file = Path(NAME)
    path = path_of(context)
    if not path:
        return
    _warn_of_unknown_variables(context.command, functools.reduce(_variable, path, PREFIX))
    root: Any = context.find_root().command
    table: Any = read_options(settings.file, root, named=settings.named) if settings.file else {}
    for name in path:
        table = table.get(name, {})
    context.default_map = table


def _named_file(arguments: Sequence[str]) -> str | None:
    """FILE of ``--config FILE`` or ``--config=FILE``, the last of several; what is behind -- is of other commands."""
    own = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    named = [value for option, value in itertools.pairwise(own) if option == "--config"]
    joined = [argument.partition("=")[2] for argument in own if argument.startswith("--config=")]
    return next(iter([*reversed(joined), *reversed(named)]), None)


def _be_quiet(wanted: bool) -> None:
    current().quiet |= wanted


def _debug(wanted: bool) -> None:
    current().debug |= wanted


def _dump(wanted: bool) -> None:
    current().dump |= wanted


def _shared(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_read_config,
            help=f"Take options from this file. Default: {NAME} where there is one.",
        ),
    ] = None,
    dump_config: Annotated[
        bool,
        typer.Option(
            "--dump-config",
            expose_value=False,
            callback=_dump,
            help="Print the options as such a file, with where each came from, and do nothing else.",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            expose_value=False,
            callback=_be_quiet,
            help="No progress and no remarks on standard error.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            is_eager=True,
            expose_value=False,
            callback=_debug,
            help="Show where an error came from.",
        ),
    ] = False,
) -> None:
    """The options that every command has, declared as any command's."""


def _shared_options() -> list[Any]:
    """New parameters as ``_shared`` declares them."""
    declaring = typer.Typer(add_completion=False)
    declaring.command()(_shared)
    return typer.main.get_command(declaring).params


def _warn_of_unknown_variables(command: Any, prefix: str) -> None:
    """Warn of environment variables that are named like a command's and set none of its options."""
    known = set(_variables(command))
    for name in sorted(os.environ):
        if name.startswith(f"{prefix}_") and name not in known:
            warnings.warn(f"{name} sets no option; the nearest variable is {nearest(name, known)}", stacklevel=2)


def _variables(command: Any) -> Iterator[str]:
    """The environment variables of a command and of those below it."""
    for param in command.params:
        yield from [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
    for below in getattr(command, "commands", {}).values():
        yield from _variables(below)
