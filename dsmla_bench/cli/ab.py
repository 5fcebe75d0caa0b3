"""``dsmla-bench ab``: measure two installs or two libraries in turns, and judge the head."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dsmla_bench.cli.common import ExitCode, complain, say
from dsmla_bench.cli.compare import AsJson, Everything, Github, Junit, Markdown, show
from dsmla_bench.cli.progress import progress

if TYPE_CHECKING:
    from dsmla_bench.bench.ab import Side
    from dsmla_bench.places import Place
    from dsmla_bench.reports.comparison import Comparison

DEFAULTS = ("--methods", "activity")
"""Options of ``kernels`` that the user's own come after: a pair needs no second opinion, it has a second process."""
LOOK_AGAIN = ("ambiguous", "slow", "fast")
"""Verdicts of the first look that more pairs have to settle."""


def ab(
    options: Annotated[
        list[str] | None, typer.Argument(help="Options of `kernels` for both, after --.", metavar="-- OPTIONS")
    ] = None,
    base: Annotated[str | None, typer.Option(help="How to start the base's dsmla-bench. Default: this one.")] = None,
    head: Annotated[str | None, typer.Option(help="How to start the head's dsmla-bench. Default: this one.")] = None,
    base_options: Annotated[
        str, typer.Option(help="Options of `kernels` for the base alone, e.g. '--vllm-library old.so'.")
    ] = "",
    head_options: Annotated[str, typer.Option(help="Likewise for the head.")] = "",
    pairs: Annotated[int, typer.Option(help="Pairs of processes. Fewer than 8 cannot show a change.", min=1)] = 12,
    more_pairs: Annotated[int, typer.Option(help="Pairs added once for ambiguous, slow and fast rows.", min=0)] = 12,
    out: Annotated[str, typer.Option(help="Folder or URL that gets a folder with both runs.")] = "runs",
    resume: Annotated[str | None, typer.Option(help="Go on in this folder with what it lacks.")] = None,
    everything: Everything = False,
    markdown: Markdown = None,
    junit: Junit = None,
    github: Github = False,
    as_json: AsJson = False,
) -> None:
    """Measure two installs or two libraries in turns (ABBA) on one GPU, and compare them pair by pair.

    Without options of their own both sides are the same: an A/A, which shows what this machine resolves.

    Examples: dsmla-bench ab --base old/bin/dsmla-bench -- --ops gather;
    dsmla-bench ab --base-options '--vllm-library old.so' --head-options '--vllm-library new.so' -- --providers vllm
    """
    from dsmla_bench.places import place

    folder = place(resume) if resume else new_folder(place(out))
    shared = [f"--processes={pairs}", *(options or [])]
    commands = {
        name: side_command(name, start, folder, [*shared, *shlex.split(own)])
        for name, start, own in (("base", base, base_options), ("head", head, head_options))
    }
    found = measured(commands, pairs, more_pairs, folder)
    show(found, everything=everything, markdown=markdown, junit=junit, github=github, as_json=as_json)
    say(f"the runs are in {folder}")
    raise typer.Exit(ExitCode.FINDINGS if found.findings else ExitCode.FINE)


def new_folder(out: Place) -> Place:
    """A name below ``out`` for a folder with two runs."""
    return out / f"ab-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def side_command(name: str, start: str | None, folder: Place, options: Sequence[str]) -> list[str]:
    """The command of one side, which goes on with the run in its folder where there is one.

    Raises ValueError for a folder with several.
    """
    started = shlex.split(start) if start else [sys.executable, "-m", "dsmla_bench"]
    runs = sorted(path.parent for path in (folder / name).glob("*/manifest.json"))
    if len(runs) > 1:
        raise ValueError(f"{folder / name} holds {len(runs)} runs, one is expected; name another folder with --resume")
    where = ["--resume", str(runs[0])] if runs else ["--out", str(folder / name)]
    return [*started, "kernels", *DEFAULTS, *options, *where, "--paired", folder.name]


def measured(commands: dict[str, list[str]], pairs: int, more_pairs: int, folder: Place) -> Comparison:
    """Both sides measured and compared. Exits with ``INTERRUPTED`` at Ctrl-C, ``NO_DEVICE`` where a side has none."""
    from dsmla_bench.bench.ab import SideError
    from dsmla_bench.reports.comparison import compare
    from dsmla_bench.results import Run

    try:
        with sides(commands) as (base, head):
            paths = [side.wait_until_ready() for side in (base, head)]
            take(base, head, range(pairs), None)
            first = compare(*map(Run.load, paths))
            again = [found for found in first.judged if found.metric == "us" and found.verdict in LOOK_AGAIN]
            rows = {found.row_id for found in again if found.row_id is not None}
            if rows and more_pairs:
                say(f"{len(rows)} rows get {more_pairs} more pairs")
                take(base, head, range(pairs, pairs + more_pairs), rows)
    except KeyboardInterrupt:
        say(f"interrupted; finished rows are kept, go on with --resume {folder}")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except SideError as error:
        if error.code == ExitCode.NO_DEVICE:
            complain("no GPU of the architecture here; ab times both sides and needs one")
            raise typer.Exit(ExitCode.NO_DEVICE) from None
        raise
    return compare(*map(Run.load, paths))


@contextlib.contextmanager
def sides(commands: dict[str, list[str]]) -> Iterator[tuple[Side, Side]]:
    """Both sides, started together; whatever happens, each finishes its run before this returns."""
    from dsmla_bench.bench.ab import Side

    started: list[Side] = []
    try:
        for name, command in commands.items():
            started.append(Side(name, command))
        yield started[0], started[1]
    except BaseException:
        for side in started:
            side.interrupt()
        raise
    finally:
        answering = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is measured is written down in any case
        for side in started:
            side.finish()
        signal.signal(signal.SIGINT, answering)


def take(base: Side, head: Side, processes: range, rows: set[str] | None) -> None:
    """Take these turns, telling how far they are."""
    from dsmla_bench.bench.ab import alternate

    with progress(2 * len(processes)) as tell:
        turns = itertools.chain(alternate(base, head, processes, rows), [(0, "")])
        for (process, side), _ in itertools.pairwise(turns):  # a turn is over when the next one is asked for
            tell(f"pair {process + 1}, {side}")
