"""``dsmla-bench formats``: the layout table, and the byte map of one format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.common import print_json, print_text

if TYPE_CHECKING:
    from dsmla_bench.kernels.formats import CacheFormat

MAP_WIDTH = 88


def formats(
    format: Annotated[
        str | None, typer.Option("--format", help="Draw the byte map of one format, e.g. nvfp4_ds_mla.")
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per cache page.", min=1)] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show the cache formats: bytes per token and page, fields, architectures, size against bf16."""
    from dsmla_bench.kernels.formats import all_formats, get_format

    chosen = [get_format(format)] if format else list(all_formats())
    if as_json:
        print_json([describe(fmt, block_size) for fmt in chosen])
    elif format:
        print_text(byte_map(chosen[0]))
    else:
        print_text(table([describe(fmt, block_size) for fmt in chosen], block_size))


def describe(fmt: CacheFormat, block_size: int) -> dict[str, Any]:
    """One format as plain data."""
    from dsmla_bench.kernels.arch import KNOWN
    from dsmla_bench.kernels.formats import Geometry, get_format

    geometry = fmt.geometry or Geometry()
    return {
        "format": fmt.name,
        "revision": fmt.revision,
        "default": fmt.default,
        "lab": fmt.lab,
        "bytes_per_token": fmt.row_bytes(geometry),
        "bytes_per_page": fmt.page_bytes(block_size, geometry),
        "ratio_to_bf16": get_format("bf16").row_bytes(geometry) / fmt.row_bytes(geometry),
        "fields": [
            {
                "name": f.name,
                "dtype": f.dtype,
                "offset": f.offset,
                "count": f.count,
                "bytes": f.nbytes,
                "order": f.order,
            }
            for f in fmt.fields(geometry)
        ],
        "conversion": {arch.name: fmt.conversion(arch) for arch in KNOWN},
        "geometry": str(geometry) if fmt.geometry else "any",
        "summary": fmt.summary,
    }


def table(rows: list[dict[str, Any]], block_size: int) -> str:
    """The formats as aligned text, those of the lab under a heading of their own."""
    heads = [
        "format",
        "revision",
        "B/token",
        f"B/page of {block_size}",
        "bf16/this",
        "row, in byte order",
        "architectures",
    ]
    lines = [heads]
    for row in rows:
        fields = " | ".join(f"{f['count']} {f['dtype']} {f['name']}" for f in row["fields"])
        revision = row["revision"] + (" (default)" if row["default"] else "")
        ratio = f"{row['ratio_to_bf16']:.4g}"
        lines.append(
            [
                row["format"],
                revision,
                str(row["bytes_per_token"]),
                str(row["bytes_per_page"]),
                ratio,
                fields,
                _where(row["conversion"]),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    right = {2, 3, 4}
    aligned = [
        "  ".join(
            cell.rjust(w) if c in right else cell.ljust(w) for c, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    swept = 1 + sum(not row["lab"] for row in rows)
    if swept < len(aligned):
        aligned[swept:swept] = ["", "In the lab, swept when named with --formats:"]
    return "\n".join(aligned)


def _where(conversion: dict[str, str | None]) -> str:
    """On which architectures our kernels run, and where a conversion is emulated."""
    if None not in conversion.values() and "emulated" not in conversion.values():
        return "all"
    native = [arch for arch, kind in conversion.items() if kind in ("native", "none")]
    emulated = [arch for arch, kind in conversion.items() if kind == "emulated"]
    parts = [f"{native[0]}+"] if native else []
    return "; ".join(parts + ([f"emulated on {', '.join(emulated)}"] if emulated else [])) or "none"


def byte_map(fmt: CacheFormat) -> str:
    """The row of a format drawn to scale, with its fields' offsets and orders."""
    from dsmla_bench.kernels.formats import Geometry

    geometry = fmt.geometry or Geometry()
    fields, total = fmt.fields(geometry), fmt.row_bytes(geometry)
    cells = [max(len(f"{f.name} {f.dtype}") + 2, round(MAP_WIDTH * f.nbytes / total)) for f in fields]
    rule = "+" + "+".join("-" * cell for cell in cells) + "+"
    names = "|" + "|".join(f"{f.name} {f.dtype}".center(cell) for f, cell in zip(fields, cells, strict=True)) + "|"
    offsets = "".join(str(f.offset).ljust(cell + 1) for f, cell in zip(fields, cells, strict=True)) + str(total)
    details = [
        f"  [{f.offset}, {f.end})".ljust(14)
        + f"{f.count} {f.dtype} {f.name}, {f.nbytes} bytes"
        + ("" if f.order == "by index" else f"; {f.order}")
        for f in fields
    ]
    head = f"{fmt.key}: {total} bytes per token ({fmt.summary})"
    return "\n".join([head, "", offsets, rule, names, rule, "", *details, *_page_rules(fmt)])


def _page_rules(fmt: CacheFormat) -> list[str]:
    """What makes a page other than its rows one after another, in lines below a byte map."""
    rules = []
    if fmt.suffix_bytes:
        rules.append(
            f"the last {fmt.suffix_bytes} bytes of all rows of a page lie together, behind the rest of the rows"
        )
    if fmt.page_alignment > 1:
        rules.append(f"pages are padded to a multiple of {fmt.page_alignment} bytes")
    return ["", *(f"  {rule}" for rule in rules)] if rules else []
