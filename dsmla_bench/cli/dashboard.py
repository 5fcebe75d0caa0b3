"""``dsmla-bench dashboard``: a history as pages to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsmla_bench.cli.common import print_text
from dsmla_bench.cli.history import Since, Store


def dashboard(
    store: Store,
    out: Annotated[Path, typer.Option(help="Folder to write the pages to; files of an earlier one are replaced.")],
    since: Since = None,
) -> None:
    """Write a history as static pages: trends with commits and changes, filters, the latest table. Needs no GPU.

    Open index.html, or publish the folder: there is no server, and the pages ask the network for nothing.

    Example: dsmla-bench dashboard --store s3://bucket/history --out site
    """
    from dsmla_bench.history import History
    from dsmla_bench.reports.dashboard.site import write_dashboard

    print_text(f"wrote {write_dashboard(History(store), out, since)}")
