"""The command that measures one row of a run again, so that a failure can be looked at alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from dsmla_bench.results import Run
from dsmla_bench.rows import FINDINGS, OWN_AXES, Row

COMPILE_OPTIONS = {
    "arch": "--arch",
    "operation": "--ops",
    "provider": "--providers",
    "tokens": "--tokens",
    "block_size": "--block-sizes",
}
"""Axes of a case and the options of ``compile`` that name them, the format apart, which has a revision."""
KERNELS_OPTIONS = {
    **COMPILE_OPTIONS,
    "page_order": "--page-orders",
    "requests": "--requests",
    "l2_state": "--l2",
    **dict(zip(OWN_AXES, ("--heads", "--topk", "--queries", "--variants"), strict=True)),
}
"""Likewise of ``kernels``."""


def repeats(run: Run) -> dict[str, str]:
    """Row id → the command that measures that row alone, for every row that is a finding."""
    return {row.row_id: repeat_command(row, run.manifest) for row in run.summaries() if row.status in FINDINGS}


def repeat_command(row: Row, manifest: Mapping[str, Any]) -> str:
    """The command that measures ``row`` of a run with this manifest again, ready for a shell."""
    config = manifest.get("config") or {}
    sweep = "processes" in config
    words = ["dsmla-bench", "kernels" if sweep else "compile", "--formats", f"{row.format}:{row.revision}"]
    for axis, option in (KERNELS_OPTIONS if sweep else COMPILE_OPTIONS).items():
        value = getattr(row, axis)
        words += [] if value is None else [option, str(value)]
    if sweep:
        methods = config.get("methods")
        words += ["--methods", ",".join(map(str, methods))] if isinstance(methods, list) else []
        words += ["--processes", str(config["processes"]), "--seed", str(config.get("seed", 0))]
    return shlex.join([*words, *_library(row.provider, manifest)])


def _library(provider: str, manifest: Mapping[str, Any]) -> list[str]:
    """The option that names the provider's compiled operators, where the run was given some."""
    name = f"{provider.replace('_', '-')}-library"
    given = (manifest.get("options") or {}).get(name)
    return [f"--{name}", str(given["value"])] if isinstance(given, dict) and given.get("value") else []
