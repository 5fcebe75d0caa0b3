"""The grid that pictures of kernels share: a panel per operation, own axes and format, a line per provider over sizes.

A hollow marker is a launch-bound time. Which rows are drawn where a run holds several for one point is the business of
``curves``; the subtitle says it. Providers look the same in all pictures of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from dsmla_bench.reports.curves import PANEL, SHAPE, curves, describe, with_shape
from dsmla_bench.reports.kernel_frame import BASELINE, KEYS, METRICS, in_order, providers_of, unit_of
from dsmla_bench.reports.plots import COLOURS, DASHES, MARKERS
from dsmla_bench.reports.sheet import GREY, SMALL, Sheet, plain_numbers, spread
from dsmla_bench.reports.tables import format_label

COLUMNS = [
    *(*KEYS, "provider", *METRICS, "device", "method", "floor_us", "copy_gbps", "matmul_tflops", "bound_us"),
    *("bytes_read", "bytes_written", "flops"),
]
"""What pictures read of the rows; copying the many others about would take most of the time."""


@dataclass(frozen=True)
class Grid:
    """What a picture of some operations draws.

    rows       all rows of these operations, with ``shape``
    drawn      those that are drawn, as ``curves`` chooses them
    providers  of the whole run: the place of each decides its colour, marker and dashes
    """

    rows: pd.DataFrame
    drawn: pd.DataFrame
    providers: list[str]
    default_revisions: Mapping[str, str]

    @classmethod
    def of(
        cls,
        rows: pd.DataFrame,
        operations: Collection[str] | None = None,
        baseline: str = BASELINE,
        default_revisions: Mapping[str, str] | None = None,
    ) -> Grid:
        """The grid of ``operations``, all by default. Raises NothingToPlotError when none of their rows is timed."""
        own = rows[COLUMNS] if operations is None else rows.loc[rows["operation"].isin(operations), COLUMNS]
        return cls(with_shape(own), curves(own), providers_of(rows, baseline), default_revisions or {})

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Operation and shape of every line of panels, from the top."""
        keys = in_order(self.rows)[["operation", SHAPE]].drop_duplicates()
        return list(zip(keys["operation"], keys[SHAPE], strict=True))

    @property
    def formats(self) -> list[tuple[str, str]]:
        """Format and revision of every column of panels."""
        keys = self.rows[["format", "revision"]].drop_duplicates().sort_values(["format", "revision"])
        return list(zip(keys["format"], keys["revision"], strict=True))

    @property
    def size(self) -> str:
        """What the panels are drawn over: "tokens per launch", "requests per launch" of decode."""
        return f"{' or '.join(dict.fromkeys(map(unit_of, self.drawn['queries'])))} per launch"

    def sheet(self, title: str, handles: list[Artist]) -> Sheet:
        """An empty sheet for the panels; its title names an operation that the panels do not."""
        named = f"{title}: {self.lines[0][0]}" if all(shape for _, shape in self.lines) else title
        return Sheet(len(self.lines), len(self.formats), named, describe(self.drawn), handles)

    def panels(self, sheet: Sheet, notes_at: float) -> Iterator[tuple[Axes, pd.DataFrame]]:
        """Axes for every panel of the run; yields those with something to draw, and their rows.

        ``notes_at`` is the height in a panel, 0 to 1, below which it says what is emulated or not timed.
        """
        measured, timed = (dict(list(rows.groupby(PANEL, sort=False))) for rows in (self.rows, self.drawn))
        for number, (operation, shape) in enumerate(self.lines):
            leftmost = True
            for column, (format, revision) in enumerate(self.formats):
                key = (operation, shape, format, revision)
                if key not in measured:
                    continue
                everything, here = measured[key], timed.get(key, self.drawn.iloc[:0])
                name = format_label(self.rows, format, revision, self.default_revisions)
                axes = sheet.panel(number, column, f"{shape or operation} · {name}")
                self._size_axis(axes)
                axes.tick_params(labelleft=leftmost)
                leftmost = leftmost and here.empty
                axes.text(0.03, notes_at, _notes(everything, here), transform=axes.transAxes, va="top", color=GREY,
                          fontsize=SMALL, parse_math=False)  # fmt: skip
                if here.empty:
                    axes.set_yticks([])
                else:
                    yield axes, here

    def draw(self, axes: Axes, line: pd.DataFrame, column: str, provider: str) -> None:
        """A provider's line of ``column`` over sizes; the markers of ``launch_bound`` rows hollow."""
        style = self.style(provider)
        axes.plot(line["tokens"].to_numpy(float), line[column].to_numpy(float), **style)
        hollow = line[line["launch_bound"].fillna(False).astype(bool)]
        style |= {"linestyle": "", "markerfacecolor": "white"}
        axes.plot(hollow["tokens"].to_numpy(float), hollow[column].to_numpy(float), **style)

    def legend(self, providers: Collection[str]) -> list[Artist]:
        """A handle for each of these providers that is drawn, and one for hollow markers where there are any."""
        present = set(self.drawn["provider"]) & set(providers)
        handles: list[Artist] = [
            Line2D([], [], label=name, **self.style(name)) for name in self.providers if name in present
        ]
        hollow: dict[str, Any] = {"color": "#000000", "marker": "o", "markerfacecolor": "white", "linestyle": ""}
        if self.drawn["launch_bound"].fillna(False).any():
            handles.append(Line2D([], [], label="launch-bound", **hollow))
        return handles

    def style(self, provider: str) -> dict[str, Any]:
        """How a provider's line looks."""
        number = self.providers.index(provider)
        return {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "linestyle": DASHES[number % len(DASHES)],
            "linewidth": 1.6,
            "markersize": 5,
            "clip_on": False,
        }

    def _size_axis(self, axes: Axes) -> None:
        tokens = self.drawn["tokens"]
        axes.set_xscale("log")
        axes.set_xlim(0.6 * tokens.min(), 1.7 * tokens.max())
        axes.xaxis.set_major_locator(FixedLocator(spread(list(tokens))))
        axes.xaxis.set_minor_locator(NullLocator())
        plain_numbers(axes.xaxis)


def _notes(everything: pd.DataFrame, here: pd.DataFrame) -> str:
    """Whom a panel lacks and who emulates: "vllm: skipped"."""
    missing = everything[~everything["provider"].isin(here["provider"])]
    lines = [f"{name}: {'/'.join(group['status'].unique())}" for name, group in missing.groupby("provider")]
    emulated = here.loc[here["conversion"].isin(["emulated"]), "provider"].unique()
    return "\n".join([*lines, *(f"{name}: conversion emulated" for name in emulated)])
