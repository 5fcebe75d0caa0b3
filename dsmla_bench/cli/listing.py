"""``dsmla-bench list``: operations, formats and providers, and which provider serves what."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.common import print_json, print_text, split, terminal_width
from dsmla_bench.cli.grid import described
from dsmla_bench.cli.libraries import FlashMlaLibrary, VllmLibrary, libraries

if TYPE_CHECKING:
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.kernels.formats import CacheFormat
    from dsmla_bench.kernels.operations import Operation


@dataclass(frozen=True)
class Served:
    """Whether a provider serves a format in an operation: ``why_not`` is the reason, None where it does."""

    operation: str
    format: CacheFormat
    provider: str
    why_not: str | None


def list_axes(
    arch: Annotated[str, typer.Option(help="Architecture to judge for, e.g. sm90.")] = "sm90",
    formats: Annotated[
        str | None, typer.Option(help="Formats to judge, e.g. dsv4_584. Default: what a sweep covers.")
    ] = None,
    vllm_library: VllmLibrary = None,
    flash_mla_library: FlashMlaLibrary = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """List operations, formats and providers, and why a provider cannot serve a format here. Needs no GPU.

    Examples: dsmla-bench list; dsmla-bench list --arch sm100 --json
    """
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.kernels.formats import default_formats, get_format
    from dsmla_bench.kernels.operations import all_operations
    from dsmla_bench.kernels.providers import load_providers

    target = Architecture.parse(arch)
    providers = load_providers(libraries(vllm=vllm_library, flash_mla=flash_mla_library))
    judged = [get_format(name) for name in split(formats)] or default_formats()
    served = [
        Served(op.name, fmt, name, provider.why_not(op, fmt, target))
        for op in all_operations()
        for name, provider in providers.items()
        for fmt in filter(op.covers, judged)
    ]
    if as_json:
        axes = {op.name: _axes(op) for op in all_operations()}
        print_json({"arch": target.name, "axes": axes, "cases": [_record(one) for one in served]})
        return
    summaries = [(name, provider.summary) for name, provider in providers.items()]
    print_text("\n".join(_text(summaries, served, target, terminal_width())))


def _axes(operation: Operation) -> dict[str, tuple[Any, ...]]:
    """What a sweep covers of an operation unless told otherwise."""
    pages = {"page_orders": operation.page_orders} if operation.uses_pages else {}
    return {"tokens": operation.tokens, **pages, **operation.axes}


def _record(one: Served) -> dict[str, Any]:
    return {
        "operation": one.operation,
        "format": one.format.key,
        "provider": one.provider,
        "why_not": one.why_not,
    }


def _text(
    providers: Sequence[tuple[str, str]], served: Sequence[Served], target: Architecture, width: int | None
) -> Iterator[str]:
    """The listing line by line, at most ``width`` characters wide."""
    from dsmla_bench.kernels.formats import all_formats
    from dsmla_bench.kernels.operations import all_operations

    formats = {lab: [(fmt.key, fmt.summary) for fmt in all_formats() if fmt.lab == lab] for lab in (False, True)}
    yield "operations, and what a sweep covers of each"
    yield from described([line for op in all_operations() for line in _covered(op)], "  ", width)
    yield from ["", "formats", *described(formats[False], "  ", width)]
    yield "formats of other models and engines (the lab), swept when named with --formats"
    yield from described(formats[True], "  ", width)
    yield from ["", "providers", *described(providers, "  ", width)]
    yield from ["", f"who serves what on {target.label}"]
    for operation, here in itertools.groupby(served, key=lambda one: one.operation):
        yield from [f"  {operation}", *described(_answers(list(here)), "    ", width)]


def _covered(operation: Operation) -> Iterator[tuple[str, str]]:
    yield operation.name, operation.summary
    for name, values in _axes(operation).items():
        yield "", f"{name.replace('_', ' ')} {', '.join(map(str, values))}"


def _answers(served: Sequence[Served]) -> Iterator[tuple[str, str]]:
    """What each provider serves of one operation, then each reason why not, with the formats that it is about."""
    for provider, own in itertools.groupby(served, key=lambda one: one.provider):
        formats: dict[str | None, list[str]] = {None: []}
        for one in own:
            formats.setdefault(one.why_not, []).append(one.format.name if one.format.default else one.format.key)
        name = provider
        for reason, those in formats.items():
            if those:
                yield name, _answer(reason, those, everything=sum(map(len, formats.values())) == len(those))
                name = ""


def _answer(reason: str | None, formats: Sequence[str], *, everything: bool) -> str:
    if reason is None:
        return "all formats" if everything else ", ".join(formats)
    return f"none: {reason}" if everything else f"not {', '.join(formats)}: {reason}"
