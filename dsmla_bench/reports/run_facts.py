"""What a run's manifest says for a reader: what ran where, with which packages, and how fast the machine is."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dsmla_bench.reports.tables import significant
from dsmla_bench.results import Run


def default_revisions(run: Run) -> dict[str, str]:
    """Format → the revision that its bare name means, as the manifest has it; {} for one without."""
    return dict(run.manifest.get("default_revisions") or {})


def run_facts(run: Run, rows: str) -> tuple[str, ...]:
    """A line each: run, device, packages, ``rows`` (how many of each status), calibration, command, if known."""
    manifest = run.manifest
    calibration = manifest.get("calibration") or {}
    measured = {
        "empty kernel": (calibration.get("floor_us"), "µs"),
        "clock quantum": (calibration.get("quantum_us"), "µs"),
        "copy kernel": (calibration.get("copy_gbps"), "GB/s"),
    }
    known = [f"{name} {significant(value)} {unit}" for name, (value, unit) in measured.items() if value is not None]
    packages = {name: version for name, version in (manifest.get("packages") or {}).items() if version}
    facts = {
        "run": _run(manifest),
        "device": _devices(manifest),
        "targets": "; ".join(_target(*target) for target in (manifest.get("targets") or {}).items()),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "rows": rows,
        "calibration": ", ".join(known),
        "command": shlex.join(map(str, manifest.get("argv") or [])),
        "seed": "" if manifest.get("seed") is None else str(manifest["seed"]),
    }
    return tuple(f"{name}: {text}" for name, text in facts.items() if text)


def _run(manifest: Mapping[str, Any]) -> str:
    is_over = manifest.get("ended_at") and not manifest.get("interrupted")
    ended = f"ended {manifest['ended_at']}" if is_over else "did not end: these are the rows it left"
    version = f"dsmla-bench {manifest['tool_version']}" if manifest.get("tool_version") else None
    started = f"started {manifest['started_at']}" if manifest.get("started_at") else None
    return ", ".join(str(part) for part in (manifest.get("run_id"), version, started, ended) if part)


def _devices(manifest: Mapping[str, Any]) -> str:
    """The run's device, or how many it had of each kind."""
    several = [device for device in manifest.get("devices") or [] if isinstance(device, dict)]
    if len(several) < 2:
        return _device(manifest.get("device") or {})
    kinds = Counter(_device({**device, "uuid": None}) for device in several)
    return "; ".join(f"{count} × {kind}" for kind, count in kinds.items())


def _device(device: Mapping[str, Any]) -> str:
    sizes = {"sm_count": "{} SMs", "l2_bytes": "{:.0f} MB L2"}
    scale = {"l2_bytes": 1e-6}
    numbers = [text.format(device[key] * scale.get(key, 1)) for key, text in sizes.items() if device.get(key)]
    named = [f"{key} {device[key]}" for key in ("driver", "uuid") if device.get(key)]
    return ", ".join([str(device[key]) for key in ("name", "arch") if device.get(key)] + numbers + named)


def _target(arch: str, facts: Mapping[str, Any]) -> str:
    """The published figures of one target: "sm90 is H200 SXM, compute capability 9.0, 132 SMs, 52 MB L2, 4800 GB/s"."""
    if not facts.get("part"):
        return arch
    sizes = f"{facts['sms']} SMs, {facts['l2_bytes'] / 1e6:.0f} MB L2, {facts['gbps']:.0f} GB/s"
    return f"{arch} is {facts['part']}, compute capability {facts['compute_capability']}, {sizes}"
