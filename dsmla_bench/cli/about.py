"""``dsmla-bench list`` and ``dsmla-bench env``: what could be measured here, and where here is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsmla_bench.cli.common import print_json, print_text

if TYPE_CHECKING:
    from dsmla_bench.kernels.operations import Operation

VllmLibrary = Annotated[
    Path | None,
    typer.Option(
        "--vllm-library",
        envvar="DSMLA_BENCH_VLLM_LIBRARY",
        help="vLLM's compiled cache operators (a .so), instead of an installed vLLM.",
    ),
]

FlashMlaLibrary = Annotated[
    Path | None,
    typer.Option(
        "--flash-mla-library",
        envvar="DSMLA_BENCH_FLASH_MLA_LIBRARY",
        show_envvar=False,  # too long for help on 80 columns
        help="FlashMLA's compiled operators (a .so), instead of an installed one.",
    ),
]


def libraries(**paths: Path | None) -> dict[str, Path]:
    """The compiled libraries that were given, by provider."""
    return {provider: path for provider, path in paths.items() if path is not None}


def list_axes(
    arch: Annotated[str, typer.Option(help="Architecture to judge for, e.g. sm90.")] = "sm90",
    vllm_library: VllmLibrary = None,
    flash_mla_library: FlashMlaLibrary = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """List operations, formats and providers, and why a provider cannot serve a format here. Needs no GPU.

    Examples: dsmla-bench list; dsmla-bench list --arch sm100 --json
    """
    from dsmla_bench.kernels.arch import Architecture
    from dsmla_bench.kernels.formats import all_formats
    from dsmla_bench.kernels.operations import all_operations
    from dsmla_bench.kernels.providers import load_providers

    target = Architecture.parse(arch)
    providers = load_providers(libraries(vllm=vllm_library, flash_mla=flash_mla_library))
    usable = [
        {"operation": op.name, "format": fmt.key, "provider": name, "why_not": provider.why_not(op, fmt, target)}
        for op in all_operations()
        for fmt in filter(op.covers, all_formats())
        for name, provider in providers.items()
    ]
    if as_json:
        listed = {op.name: _axes(op) for op in all_operations()}
        print_json({"arch": target.name, "axes": listed, "cases": usable})
        return
    lines = ["operations"]
    for op in all_operations():
        lines += [f"  {op.name:<18}{op.summary}"]
        lines += [f"    {name:<16}{', '.join(map(str, values))}" for name, values in _axes(op).items()]
    widest = max(len(fmt.key) for fmt in all_formats())
    lines += ["formats"] + [f"  {fmt.key:<{widest}}  {fmt.summary}" for fmt in all_formats()]
    lines += ["providers"] + [f"  {name:<18}{provider.summary}" for name, provider in providers.items()]
    lines += [f"on {target.label}"]
    print_text("\n".join([*lines, *_reasons(usable)]))


def _axes(operation: Operation) -> dict[str, tuple[Any, ...]]:
    """What a sweep covers of an operation unless told otherwise."""
    pages = {"page_orders": operation.page_orders} if operation.uses_pages else {}
    return {"tokens": operation.tokens, **pages, **operation.axes}


def _reasons(cases: list[dict[str, Any]]) -> list[str]:
    """A line per provider, operation and reason, with the formats that it holds for."""
    formats: dict[tuple[str, str, str], list[str]] = {}
    for case in cases:
        key = (case["provider"], case["operation"], case["why_not"] or "usable")
        formats.setdefault(key, []).append(case["format"])
    return [f"  {p:<12}{op:<17}{reason}: {', '.join(names)}" for (p, op, reason), names in formats.items()]


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False) -> None:
    """Show what a manifest would say of this machine: packages, git commit, CUDA devices.

    Examples: dsmla-bench env; dsmla-bench env --json
    """
    import torch

    from dsmla_bench.bench.manifest import describe, describe_device

    devices = [describe_device(index) for index in range(torch.cuda.device_count())]
    facts = {**describe(), "devices": devices}
    if as_json:
        print_json(facts)
    else:
        print_text("\n".join(_lines(facts)))


def _lines(facts: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            lines += [f"{indent}{name}", *_lines(value, indent + "  ")]
        elif isinstance(value, list):
            lines += [f"{indent}{name}: {'none' if not value else len(value)}"]
            lines += [line for item in value for line in _lines(item, indent + "  ")]
        else:
            lines.append(f"{indent}{name}: {'–' if value is None or value == {} else value}")
    return lines
