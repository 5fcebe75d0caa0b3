"""``dsmla-bench dashboard``: a history as pages to look at."""

from __future__ import annotations

from typing import Annotated

import typer

from dsmla_bench.cli.common import print_text
from dsmla_bench.cli.history import Gpu, Since, Store


def dashboard(
    store: Store,
    out: Annotated[str, typer.Option(help="Folder or URL to write the pages to; an earlier dashboard is replaced.")],
    since: Since = None,
    gpu: Gpu = None,
) -> None:
    """Write a history as static pages: trends with commits and changes, filters, the latest table. Needs no GPU.

    Open index.html, or publish the folder: there is no server, and the pages ask the network for nothing.

    Examples: dsmla-bench dashboard --store history --out site;
    dsmla-bench dashboard --store s3://bucket/history --out site --since 2026-11
    """
    from dsmla_bench.history import History, Part
    from dsmla_bench.reports.dashboard.site import write_dashboard

    print_text(f"wrote {write_dashboard(History(store), out, Part(since, gpu))}")
