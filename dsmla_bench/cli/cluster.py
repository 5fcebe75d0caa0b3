"""What the commands that can work on a Ray cluster share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dsmla_bench.cli.common import ExitCode, complain

if TYPE_CHECKING:
    from dsmla_bench.bench.cluster_plan import ClusterPlan
    from dsmla_bench.bench.plan import SweepPlan

Ray = Annotated[
    str | None, typer.Option("--ray", help="Work on the GPUs of a Ray cluster: auto, or the address of its head.")
]


def ray_aside() -> contextlib.AbstractContextManager[object]:
    """While a command is connected to a cluster: Ray prints to standard output, which belongs to the answer alone."""
    return contextlib.redirect_stdout(sys.stderr)


@contextlib.contextmanager
def on_cluster(plan: SweepPlan, address: str, *, everywhere: bool) -> Iterator[ClusterPlan]:
    """The plan on the GPUs of the cluster at ``address``; ``everywhere``: on all architectures that it has.

    What is printed meanwhile goes to standard error (``ray_aside``). Exits with ``NO_DEVICE``, naming them, where no
    node has one of the architectures.
    """
    from dsmla_bench.bench.cluster import lacking_architectures
    from dsmla_bench.bench.cluster_plan import ClusterPlan

    with contextlib.ExitStack() as stack:
        stack.enter_context(ray_aside())
        there = ClusterPlan.of(plan, address, everywhere=everywhere)
        stack.enter_context(contextlib.closing(there.cluster))
        lack = lacking_architectures([arch.name for arch in there.architectures], there.cluster.seats)
        if lack is not None:
            complain(f"{lack}; start a node that has one, or leave it out of --arch")
            raise typer.Exit(ExitCode.NO_DEVICE)
        yield there
