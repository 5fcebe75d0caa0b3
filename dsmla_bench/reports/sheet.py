"""A sheet of panels: where title, subtitle, panels, axis labels and legend lie on a figure.

Places are inches, worked out from the number of panels and the length of the texts, so that nothing overlaps whatever a
run holds. Text is never read as mathematics: a "$" in a device's name is a "$".
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

GREY = "#666666"
TITLE, TEXT, SMALL = 12.0, 9.0, 8.0
_LINE = 0.17
_LETTER = 0.066
"""Inches: the height of a line and the mean width of a letter of TEXT."""


@dataclass
class Sheet:
    """A figure with room for ``rows`` × ``columns`` panels, made empty. ``panel`` adds one, ``label`` names axes."""

    rows: int
    columns: int
    title: str
    subtitle: str
    handles: Sequence[Artist]
    left: float = 0.8
    right: float = 0.2
    panel_height: float = 2.1
    column_gap: float = 0.25
    row_gap: float = 0.6
    least_width: float = 2.6
    figure: Figure = field(init=False)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width, self.height), facecolor="white", label=self.title)
        self._text(self.left, self.height - 0.34, self.title, fontsize=TITLE, fontweight="bold")
        for number, line in enumerate(self._subtitle_lines):
            self._text(self.left, self.height - 0.56 - number * _LINE, line, color="#333333")
        if self.handles:
            self.figure.legend(
                handles=self.handles,
                ncols=self._legend_columns,
                loc="lower center",
                bbox_to_anchor=(0.5, 0.08 / self.height),
                borderaxespad=0,
                frameon=False,
                fontsize=TEXT,
                handlelength=3.2,
            )

    @property
    def panel_width(self) -> float:
        """Wide enough for a heading over one panel, narrow enough for four on a page."""
        return max(self.least_width, (6.6 - self.left - self.right) / self.columns - self.column_gap)

    @property
    def width(self) -> float:
        """The figure's width."""
        return self.left + self.right + self.columns * (self.panel_width + self.column_gap) - self.column_gap

    @property
    def height(self) -> float:
        """The figure's height."""
        return self._top + self._bottom + self.rows * (self.panel_height + self.row_gap) - self.row_gap

    def panel(self, row: int, column: int, title: str) -> Axes:
        """New axes at this place, row 0 on top."""
        x = self.left + column * (self.panel_width + self.column_gap)
        y = self._bottom + (self.rows - 1 - row) * (self.panel_height + self.row_gap)
        place = (x / self.width, y / self.height, self.panel_width / self.width, self.panel_height / self.height)
        axes = self.figure.add_axes(place)
        axes.set_title(title, fontsize=TEXT, fontweight="bold", parse_math=False)
        axes.grid(True, color="#e3e3e3", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=SMALL)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return axes

    def label(self, x: str, y: str) -> None:
        """Name both axes once for all panels, and say in the figure's label, the alternative text, what it shows."""
        axes = f"{y} against {x}" if y else x
        self.figure.set_label(f"{self.title}: {axes}. {self.subtitle}")
        middle = self.left + (self.width - self.left - self.right) / 2
        self._text(middle, self._bottom - 0.42, x, ha="center")
        self._text(0.2, self._bottom + (self.height - self._top - self._bottom) / 2, y, rotation=90, va="center")

    @property
    def _subtitle_lines(self) -> list[str]:
        return textwrap.wrap(self.subtitle, int((self.width - self.left - self.right) / _LETTER))

    @property
    def _legend_columns(self) -> int:
        widths = [len(str(handle.get_label())) * _LETTER + 0.8 for handle in self.handles]
        return len(widths) if sum(widths) <= self.width else max(1, int(self.width / max(widths)))

    @property
    def _top(self) -> float:
        return 0.8 + _LINE * len(self._subtitle_lines)

    @property
    def _bottom(self) -> float:
        return 0.6 + (0.2 * math.ceil(len(self.handles) / self._legend_columns) if self.handles else 0)

    def _text(self, x: float, y: float, text: str, **style: Any) -> None:
        style = {"fontsize": TEXT, **style}
        self.figure.text(x / self.width, y / self.height, text, parse_math=False, **style)


def plain_numbers(axis: Axis) -> None:
    """Label ticks 0.5, 20, 8192 instead of powers of ten, and minor ticks not at all."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    axis.set_minor_formatter(NullFormatter())


def spread(values: list[int], share: float = 0.15) -> list[int]:
    """Those of ``values`` (positive) that leave room for labels on a logarithmic axis: the largest, and so on down.

    ``share`` is the part of the axis that one label needs.
    """
    room = share * math.log(max(values) / min(values))
    kept: list[int] = []
    for value in sorted(set(values), reverse=True):
        if not kept or math.log(kept[-1] / value) >= room:
            kept.append(value)
    return kept
