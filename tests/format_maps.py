"""Draws the rows of formats from their fields: as text, as ``dsmla-bench formats --format`` does, and as a picture."""

from collections.abc import Iterator
from html import escape

from dsmla_bench.cli.formats import byte_map
from dsmla_bench.kernels.formats import CacheFormat, Geometry, all_formats

COLOURS = {"NoPE": "#4c78a8", "RoPE": "#f58518", "scales": "#54a24b", "pad": "#bab0ac"}
LEFT, WIDTH, BAR, STEP, TOP = 170, 800, 30, 52, 30


def drawn_formats() -> list[CacheFormat]:
    """Every format of the package in its default revision, the widest row first, those of the lab last."""
    return [fmt for fmt in all_formats() if fmt.default]


def byte_maps() -> str:
    """The byte map of every format in a block of code, under its name."""
    return "\n\n".join(f"### {fmt.name}\n\n```\n{byte_map(fmt)}\n```" for fmt in drawn_formats())


def picture() -> str:
    """An SVG of all rows on one scale of bytes."""
    formats = drawn_formats()
    widest = max(fmt.row_bytes(fmt.geometry or Geometry()) for fmt in formats)
    height = TOP + STEP * len(formats)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 70} {height}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_legend(),
    ]
    for number, fmt in enumerate(formats):
        lines += _bar(fmt, TOP + STEP * number, WIDTH / widest)
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> Iterator[str]:
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = LEFT + 90 * number
        yield f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="19" font-size="13">{name}</text>'


def _bar(fmt: CacheFormat, y: int, scale: float) -> Iterator[str]:
    """One row: its name on the left, a box for each field, its bytes on the right; titles show on hover."""
    fields = fmt.fields(fmt.geometry or Geometry())
    middle = y + BAR / 2 + 5
    yield f'<text x="{LEFT - 8}" y="{middle:g}" font-size="14" text-anchor="end">{escape(fmt.name)}</text>'
    for field in fields:
        x, width = LEFT + field.offset * scale, field.nbytes * scale
        title = f"bytes {field.offset} to {field.end - 1}: {field.count} {field.dtype} {field.name}"
        yield f'<g><title>{escape(title)}</title><rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{BAR}" '
        yield f'fill="{COLOURS[field.name]}" stroke="white"/>'
        if width > 60:
            label = f"{field.count} {field.dtype}"
            yield f'<text x="{x + width / 2:.2f}" y="{middle:g}" font-size="13" fill="white" text-anchor="middle">'
            yield f"{escape(label)}</text>"
        yield "</g>"
    end = fields[-1].end
    yield f'<text x="{LEFT + end * scale + 8:.2f}" y="{middle:g}" font-size="14">{end} B</text>'
