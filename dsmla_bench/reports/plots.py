"""What pictures share: a palette that reads in colour, to the colour-blind and in black and white, and how to save one.

A line has a colour (Okabe and Ito's), a marker and a dash pattern of its own. Figures are drawn on ``Figure`` objects,
without pyplot and its global state, on the sheet that ``sheet`` lays out.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

DPI = 140
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1, 1, 1)), (0, (3, 1)), (0, (8, 2)))
METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""What is left out of a file, by its suffix, so that equal figures give equal files."""


def point_style(number: int) -> dict[str, Any]:
    """Colour and marker of the point with this number; no two of the first 49 share both."""
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
    return {"color": COLOURS[number % len(COLOURS)], "marker": marker, "linestyle": ""}


def picture(figure: Figure, kind: str) -> bytes:
    """``figure`` as a "png" or an "svg" file. Letters of an SVG are outlines."""
    file = io.BytesIO()
    with warnings.catch_warnings(), mpl.rc_context({"svg.hashsalt": "dsmla-bench", "svg.fonttype": "path"}):
        # A device or run name may hold characters that the font lacks: a box in the picture says so well enough.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, dpi=DPI, format=kind, metadata=METADATA[kind])
    return file.getvalue()
