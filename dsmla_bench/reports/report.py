"""The report folder of a run: tables, pictures and the numbers behind them.

    report.md    what ran where, pictures, the kernel tables, why rows are missing
    rows.csv     every column of every row, full precision
    table.csv    the kernel tables as numbers, one line per shape
    us.png       µs against tokens; predicted floors where nothing was timed
    gbps.png     GB/s against tokens
    kernels.png  what the machine code of compiled kernels consists of, where there are some

It is made from the run's manifest and rows alone, in UTF-8, and can be made again at any time. None of its files is
called as one of the run's own.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dsmla_bench.reports.curves import NothingToPlotError
from dsmla_bench.reports.kernel_frame import BASELINE, kernel_frame
from dsmla_bench.reports.plots import gbps_figure, save, us_figure
from dsmla_bench.reports.renderings import escape_markdown, to_csv, to_markdown
from dsmla_bench.reports.static_plot import instructions_figure
from dsmla_bench.reports.static_table import has_static_facts, static_tables
from dsmla_bench.reports.tables import KernelTables, counts, kernel_tables, significant
from dsmla_bench.results import Run, RunError

PICTURES = {"us.png": us_figure, "gbps.png": gbps_figure}


def write_report(run: Run, out: Path | None = None, *, baseline: str = BASELINE) -> list[Path]:
    """Write the report of ``run`` into the folder ``out`` and return the files written, report.md first.

    ``out`` is ``report`` in the run's folder by default. A picture that there is nothing to draw for is left out, and
    report.md says why. Raises RunError when the folder cannot be written.
    """
    out = run.path / "report" if out is None else Path(out)
    rows = run.rows()
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = [
            _write(out / "rows.csv", to_csv(rows)),
            _write(out / "table.csv", to_csv(kernel_frame(rows, baseline))),
        ]
        pictures, lines = _draw(rows, out, baseline, default_revisions(run))
        text = _markdown(run, rows, run_tables(run, rows, baseline), lines)
        return [_write(out / "report.md", text), *written, *pictures]
    except OSError as error:
        raise RunError(f"{out}: cannot write the report here ({error.strerror}); name a writable folder") from error


def run_tables(run: Run, rows: pd.DataFrame, baseline: str = BASELINE) -> KernelTables:
    """The kernel tables of ``rows``, which are the run's or a selection of them, with what its manifest adds.

    Where nothing was timed but kernels were compiled, those of ``static_table``.
    """
    if has_static_facts(rows) and not (rows["status"] == "ok").any():
        return static_tables(rows, headline=_why_not_timed(run), default_revisions=default_revisions(run))
    tables = kernel_tables(
        rows,
        baseline=baseline,
        not_timed=run.manifest.get("not_timed"),
        default_revisions=default_revisions(run),
    )
    return dataclasses.replace(tables, headline=run.manifest.get("headline") or tables.headline)


def _why_not_timed(run: Run) -> str:
    return run.manifest.get("headline") or f"Nothing was timed: {run.manifest.get('not_timed') or 'no reason given'}"


def default_revisions(run: Run) -> dict[str, str]:
    """Format → the revision that its bare name means, as the manifest has it; {} for one without."""
    return dict(run.manifest.get("default_revisions") or {})


def run_facts(run: Run, rows: pd.DataFrame) -> list[str]:
    """What ran where, a line each: run, device, packages, rows by status, calibration, command. Unknown is left out."""
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
        "device": _device(manifest.get("device") or {}),
        "targets": "; ".join(_target(*target) for target in (manifest.get("targets") or {}).items()),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "rows": counts(rows),
        "calibration": ", ".join(known),
        "command": shlex.join(map(str, manifest.get("argv") or [])),
        "seed": "" if manifest.get("seed") is None else str(manifest["seed"]),
    }
    return [f"{name}: {text}" for name, text in facts.items() if text]


def _run(manifest: Mapping[str, Any]) -> str:
    ended = f"ended {manifest['ended_at']}" if manifest.get("ended_at") else "did not end: these are the rows it left"
    version = f"dsmla-bench {manifest['tool_version']}" if manifest.get("tool_version") else None
    started = f"started {manifest['started_at']}" if manifest.get("started_at") else None
    return ", ".join(str(part) for part in (manifest.get("run_id"), version, started, ended) if part)


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


def _draw(rows: pd.DataFrame, out: Path, baseline: str, revisions: Mapping[str, str]) -> tuple[list[Path], list[str]]:
    """The pictures written, and a line of Markdown for each: the picture, or why it is left out."""
    written, lines = [], []
    if has_static_facts(rows):
        drawn = instructions_figure(rows, default_revisions=revisions)
        written.append(save(drawn, out / "kernels.png"))
        lines.append(f"![{drawn.get_label()}](kernels.png)")
    for name, figure in PICTURES.items():
        try:
            drawn = figure(rows, baseline=baseline, default_revisions=revisions)
        except NothingToPlotError as reason:
            lines.append(f"{name} is left out: {escape_markdown(str(reason))}.")
        else:
            written.append(save(drawn, out / name))
            lines.append(f"![{drawn.get_label()}]({name})")
    return written, lines


def _markdown(run: Run, rows: pd.DataFrame, tables: KernelTables, pictures: list[str]) -> str:
    devices = rows["device"].dropna().unique()
    where = f" on {devices[0]}" if len(devices) == 1 else ""
    parts = [
        f"# Kernels{escape_markdown(where)}",
        *([f"**{escape_markdown(tables.headline)}**"] if tables.headline else []),
        "\n".join(f"- {escape_markdown(fact)}" for fact in run_facts(run, rows)),
        *pictures,
        "## Tables",
        to_markdown(dataclasses.replace(tables, headline="")).rstrip(),
        *_compiled_beside_timed(run, rows),
        "rows.csv has every row in full precision, table.csv these tables.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _compiled_beside_timed(run: Run, rows: pd.DataFrame) -> list[str]:
    """The tables of compiled kernels for a run that also timed some, whose main tables are those."""
    if not has_static_facts(rows) or not (rows["status"] == "ok").any():
        return []
    tables = dataclasses.replace(static_tables(rows, default_revisions=default_revisions(run)), reasons=())
    return ["## Compiled, not timed", to_markdown(tables).rstrip()]


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path
