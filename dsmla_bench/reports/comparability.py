"""May two runs be compared at all, and what else differs between them? Pure judgement over manifests and rows.

``mismatches`` are reasons to refuse: the kind of run, the GPU model, the target architecture, the timing method, the
state of the L2 cache, the revision of a format, and the recipe (what an error or accuracy run was given).
``differences`` are worth knowing and no reason to refuse: driver, clocks, packages, versions, libraries, a run that did
not end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsmla_bench.results import Run

KERNELS, ERROR = "kernels", "error"
GPU_PART = {"multiprocessors": "sm_count", "MIG": "mig"}
"""What makes GPUs of one model unlike, where both manifests know it: a slice of a GPU has the whole one's name."""
DEVICE_FACTS = {
    "GPU": "uuid",
    "driver": "driver",
    "ECC": "ecc",
    "power limit W": "power_limit_w",
    "largest SM clock MHz": "sm_mhz_max",
    "memory clock MHz": "memory_mhz_max",
}
RUN_FACTS = {"dsmla-bench": "tool_version", "Python": "python", "CUDA": "cuda_runtime", "seed": "seed"}
RECIPES = {ERROR: ("seed", "tokens", "only")}
"""Kind of run → the entries of its configuration that its figures depend on. A manifest's own ``recipe`` adds to it."""
VLLM_REVISIONS = (
    "vLLM has had two scale revisions of each format: fp8_ds_mla amax448 up to 0.30 and pow2 from 0.31, nvfp4_ds_mla "
    "up when it was new and rn from 0.30; rows name the one that was measured"
)


Frames = tuple[pd.DataFrame, pd.DataFrame]


@dataclass(frozen=True)
class Mismatch:
    """A field in which two runs are unlike. ``axis`` is the axis of a case that says so, None for other fields."""

    field: str
    before: str
    now: str
    axis: str | None = None

    def __str__(self) -> str:
        return f"{self.field}: {self.before} and {self.now}"


def kind_of(run: Run) -> str:
    """What a run measured: "kernels", "error", …"""
    return str(run.manifest.get("kind") or KERNELS)


def mismatches(before: Run, now: Run, rows: Frames) -> tuple[Mismatch, ...]:
    """Everything that makes two runs unlike, the kind first; () when they may be compared. ``rows``: of both runs."""
    if kind_of(before) != kind_of(now):
        return (Mismatch("kind of run", kind_of(before), kind_of(now)),)
    found = list(_unlike("recipe ({})", _recipe(before), _recipe(now)))
    if kind_of(before) == KERNELS:
        found = [*_unlike_devices(before, now), *_unlike_rows(*rows), *found]
    return tuple(found)


def differences(before: Run, now: Run, rows: Frames) -> tuple[str, ...]:
    """What else differs, a line each: "driver: 575.57 and 580.65". ``rows``: of both runs."""
    manifests = [run.manifest for run in (before, now)]
    facts = [
        {
            **_only(manifest.get("device"), DEVICE_FACTS),
            **_only(manifest, RUN_FACTS),
            **(manifest.get("packages") or {}),
            **_libraries(manifest),
            "commit": _commit(manifest),
        }
        for manifest in manifests
    ]
    lines = [str(unlike) for unlike in _unlike("{}", *facts)]
    lines += _clocks(*rows)
    if any(line.startswith(("vllm:", "vllm library:")) for line in lines):
        lines.append(VLLM_REVISIONS)
    for name, manifest in zip(("base", "head"), manifests, strict=True):
        if not manifest.get("ended_at") or manifest.get("interrupted"):
            lines.append(f"{name} did not end: only the rows that it left are compared")
    return tuple(lines)


def _unlike_devices(before: Run, now: Run) -> Iterable[Mismatch]:
    then, today = (run.manifest.get("device") or {} for run in (before, now))
    yield from _unlike("{}", {"GPU model": then.get("name")}, {"GPU model": today.get("name")})
    known = {label: name for label, name in GPU_PART.items() if None not in (then.get(name), today.get(name))}
    yield from _unlike("{}", _only(then, known), _only(today, known))


def _unlike_rows(before: pd.DataFrame, now: pd.DataFrame) -> Iterable[Mismatch]:
    """Fields of rows in which two runs have no value in common."""
    for field, column, axis in (
        ("architecture", "arch", "arch"),
        ("L2 state", "l2_state", "l2_state"),
        ("method", "method", None),
    ):
        yield from _disjoint(field, before[column], now[column], axis)
    for format in sorted(set(before["format"]) & set(now["format"])):
        then, today = (rows.loc[rows["format"] == format, "revision"] for rows in (before, now))
        yield from _disjoint(f"revision of {format}", then, today, "revision")


def _disjoint(field: str, before: pd.Series[Any], now: pd.Series[Any], axis: str | None) -> Iterable[Mismatch]:
    then, today = (sorted(set(values.dropna())) for values in (before, now))
    if then and today and not set(then) & set(today):
        yield Mismatch(field, ", ".join(then), ", ".join(today), axis)


def _recipe(run: Run) -> dict[str, Any]:
    config = run.manifest.get("config") or {}
    recipe = run.manifest.get("recipe") or {}
    named = recipe if isinstance(recipe, Mapping) else {"hash": recipe}
    return {**{name: config.get(name) for name in RECIPES.get(kind_of(run), ())}, **named}


def _only(facts: Mapping[str, Any] | None, names: Mapping[str, str]) -> dict[str, Any]:
    """The entries of ``facts`` that ``names`` (label → entry) asks for, by label."""
    return {label: (facts or {}).get(name) for label, name in names.items()}


def _unlike(label: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[Mismatch]:
    for name in dict.fromkeys([*before, *now]):
        then, today = before.get(name), now.get(name)
        if then != today:
            yield Mismatch(label.format(name), _shown(then), _shown(today))


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _libraries(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The SHA-256 of every compiled operator library, by provider."""
    libraries = (manifest.get("identity") or {}).get("libraries") or {}
    return {f"{provider} library": sha256 for provider, sha256 in libraries.items()}


def _commit(manifest: Mapping[str, Any]) -> str | None:
    git = manifest.get("git") or {}
    return f"{git['commit']}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else None


def _clocks(before: pd.DataFrame, now: pd.DataFrame) -> list[str]:
    """The multiprocessors' clocks while rows were timed, where they differ by a MHz."""
    medians = [rows["sm_mhz"].median() for rows in (before, now)]
    if any(map(pd.isna, medians)) or round(medians[0]) == round(medians[1]):
        return []
    return [f"SM clock while timing: {medians[0]:.0f} and {medians[1]:.0f} MHz"]
