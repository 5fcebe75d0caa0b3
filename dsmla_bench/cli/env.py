"""``dsmla-bench env``: what a run would record of this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsmla_bench.cli.common import print_json, print_text


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
