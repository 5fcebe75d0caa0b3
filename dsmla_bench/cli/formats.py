"""``dsmla-bench formats``: layouts and byte maps; which format a backend stores where; how many tokens fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.common import print_json, print_text, terminal_width
from dsmla_bench.cli.grid import fitted

if TYPE_CHECKING:
    from dsmla_bench.kernels.formats import CacheFormat

MAP_WIDTH, MAP_MARGIN = 88, 28
"""Characters of a byte map, and what borders and fields that are narrower than their names may add."""


def formats(
    format: Annotated[
        str | None,
        typer.Option("--format", help="Draw the byte map of one format, e.g. nvfp4_ds_mla, or count it with --model."),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per cache page.", min=1)] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    arch: Annotated[
        str | None, typer.Option(help="Explain what vLLM stores on this GPU, e.g. sm90; all: the whole matrix.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="With --arch: an attention backend, e.g. FLASHMLA_SPARSE.")
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option(help="With --arch: vLLM's flag, e.g. fp8; default auto.")
    ] = None,
    query: Annotated[str | None, typer.Option(help="With --arch: the only queries on offer, bf16 or fp8.")] = None,
    head_size: Annotated[
        int | None, typer.Option(help="With --arch: latent and RoPE values together; default 576.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="With --arch: query heads of one GPU; default 128.", min=1)] = None,
    rules: Annotated[
        str | None, typer.Option(help="With --arch: whose rules, vLLM's 0.30 or, by default, 0.33.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Count cached tokens for deepseek-v3.2, glm-5, glm-5.2, deepseek-v2-lite or a config.json."),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="With --model: memory of one GPU, e.g. 141GB.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="With --model: weights and all else but the cache, e.g. 85GB; default none.")
    ] = None,
    mtp_layers: Annotated[
        int | None, typer.Option(help="With --model: layers for multi-token prediction; default 0.", min=0)
    ] = None,
) -> None:
    """Show the cache formats: their bytes, what a backend stores where, and how many tokens a GPU caches.

    Examples: dsmla-bench formats --arch sm90 --kv-cache-dtype fp8; dsmla-bench formats --arch all;
    dsmla-bench formats --model deepseek-v3.2 --memory 141GB --weights 85GB
    """
    from dsmla_bench.kernels.formats import all_formats, default_formats, get_format

    asked = {
        "backend": backend,
        "kv_cache_dtype": kv_cache_dtype,
        "query": query,
        "head_size": head_size,
        "heads": heads,
        "rules": rules,
    }
    room = {"memory": memory, "weights": weights, "mtp_layers": mtp_layers}
    _require("--arch", arch, asked, {"--model": model, "--format": format})
    _require("--model", model, room, {})
    chosen = [get_format(format)] if format else list(all_formats())
    if arch is not None:
        from dsmla_bench.cli.formats_selection import print_selection

        print_selection(arch, {**asked, "block_size": block_size}, as_json=as_json)
    elif model is not None:
        from dsmla_bench.cli.formats_capacity import print_capacity

        counted = chosen if format else default_formats()
        print_capacity(model, memory, weights or "0GB", mtp_layers or 0, block_size, counted, as_json=as_json)
    elif as_json:
        print_json([describe(fmt, block_size) for fmt in chosen])
    elif format:
        print_text(byte_map(chosen[0], terminal_width()))
    else:
        print_text(table([describe(fmt, block_size) for fmt in chosen], block_size, terminal_width()))


def _require(option: str, value: str | None, companions: dict[str, Any], strangers: dict[str, Any]) -> None:
    """Raise ValueError for options that mean nothing without ``option``, or that do not go with it."""
    if value is None:
        alone = [f"--{name.replace('_', '-')}" for name, given in companions.items() if given is not None]
        if alone:
            raise ValueError(f"{alone[0]} needs {option}; see dsmla-bench formats --help")
        return
    for name, given in strangers.items():
        if given is not None:
            raise ValueError(f"{option} and {name} ask two questions; give one of them")


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


def table(rows: list[dict[str, Any]], block_size: int, width: int | None = None) -> str:
    """The formats as text at most ``width`` characters wide, with a note on those of the lab."""
    lines = [
        ["format", "revision", "B/token", f"B/page of {block_size}", "bf16/this", "architectures", "row, in byte order"]
    ]
    for row in rows:
        lines.append(
            [
                row["format"],
                row["revision"] + (" (default)" if row["default"] else ""),
                str(row["bytes_per_token"]),
                str(row["bytes_per_page"]),
                f"{row['ratio_to_bf16']:.4g}",
                _where(row["conversion"]),
                " | ".join(f"{f['count']} {f['dtype']} {f['name']}" for f in row["fields"]),
            ]
        )
    lab = ", ".join(row["format"] for row in rows if row["lab"])
    note = ["", f"{lab}: of other models and engines (the lab), swept when named with --formats"] if lab else []
    return "\n".join([*fitted(lines, right={2, 3, 4}, width=width), *note])


def _where(conversion: dict[str, str | None]) -> str:
    """On which architectures our kernels run, and where a conversion is emulated."""
    if None not in conversion.values() and "emulated" not in conversion.values():
        return "all"
    native = [arch for arch, kind in conversion.items() if kind in ("native", "none")]
    emulated = [arch for arch, kind in conversion.items() if kind == "emulated"]
    parts = [f"{native[0]}+"] if native else []
    return "; ".join(parts + ([f"emulated on {', '.join(emulated)}"] if emulated else [])) or "none"


def byte_map(fmt: CacheFormat, width: int | None = None) -> str:
    """The row of a format drawn to scale, with its fields' offsets and orders; about ``width`` characters wide."""
    from dsmla_bench.kernels.formats import Geometry

    geometry = fmt.geometry or Geometry()
    fields, total = fmt.fields(geometry), fmt.row_bytes(geometry)
    room = MAP_WIDTH if width is None else min(MAP_WIDTH, width - MAP_MARGIN)
    cells = [max(len(f"{f.name} {f.dtype}") + 2, round(room * f.nbytes / total)) for f in fields]
    rule = "+" + "+".join("-" * cell for cell in cells) + "+"
    names = "|" + "|".join(f"{f.name} {f.dtype}".center(cell) for f, cell in zip(fields, cells, strict=True)) + "|"
    offsets = "".join(str(f.offset).ljust(cell + 1) for f, cell in zip(fields, cells, strict=True)) + str(total)
    details = [
        f"  [{f.offset}, {f.end})".ljust(13)
        + f" {f.count} {f.dtype} {f.name}, {f.nbytes} bytes"
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
