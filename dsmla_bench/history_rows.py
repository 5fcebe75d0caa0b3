"""From a run to the rows that a history keeps of it. Pure; ``history`` writes and reads them.

The columns are those of the run's table and, where it lacks them,

    row_id                 16-digit key of what the row is about
    run_id, started_at, ended_at, tool_version, driver, seed, packages   of the manifest; packages as a JSON object
    device, device_uuid    GPU model and uuid; "CPU" and null where the run used none
    commit                 what was measured: the commit given for it, else the manifest's, null for neither
    series                 16-digit key of row, device and benchmark version: equal for figures that may be compared
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from dsmla_bench.column_types import field_types
from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Row


class HistoryError(ValueError):
    """A store that cannot be used, or a run that cannot be added; the message says why and what to do."""


@dataclass(frozen=True)
class KeptTable:
    """A table of runs that the history keeps: ``axes`` say what a row is about; ``types`` of columns that are known."""

    axes: tuple[str, ...]
    types: Mapping[str, type]


_ERROR_AXES = {
    "format": str,
    "revision": str,
    "data": str,
    "sigma": float,
    "tokens": int,
    "seed": int,
    "provider": str,
    "scale_origin": str,
    "latent_scale": float,
    "only": str,
    "part": str,
}
_SCORE_AXES = {
    "format": str,
    "task": str,
    "filter": str,
    "metric": str,
    "task_version": str,
    "num_fewshot": int,
    "documents": int,
    "model": str,
    "backend": str,
}
TABLES = {
    "rows": KeptTable(tuple(field.name for field in dataclasses.fields(Case)), field_types(Row)),
    "errors": KeptTable(tuple(_ERROR_AXES), _ERROR_AXES),
    "scores": KeptTable(tuple(_SCORE_AXES), _SCORE_AXES),
}
"""Table of a run → what identifies its rows. To keep another table is a line here."""

IDENTITY = {
    "series": str,
    "row_id": str,
    "run_id": str,
    "started_at": datetime,
    "ended_at": str,
    "tool_version": str,
    "device": str,
    "device_uuid": str,
    "driver": str,
    "commit": str,
    "packages": str,
}
"""The columns that every file has, and what they hold."""


def partitions(run: Run, commit: str | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Folder and rows of every file that the run becomes: one per table and GPU."""
    month = f"{_started(run).astimezone(UTC):%Y-%m}"
    for table, kept in TABLES.items():
        identified = _identified(run, _rows_of(run, table), kept.axes, commit)
        for (device, uuid), rows in identified.groupby(["device", "device_uuid"], dropna=False):
            folder = f"gpu={folder_name(device)}/month={month}/uuid={folder_name(uuid)}"
            yield f"table={table}/{folder}", rows.reset_index(drop=True)


def folder_name(text: Any) -> str:
    """What a GPU's model or uuid is called in a path: small ASCII letters, digits and hyphens."""
    plain = "" if pd.isna(text) else re.sub(r"[^a-z0-9]+", "-", str(text).lower()).strip("-")
    return plain or "unnamed"


def _rows_of(run: Run, table: str) -> pd.DataFrame:
    if table == "rows":
        return run.rows()
    if not run.has_table(table):
        return pd.DataFrame()
    rows = run.table(table)
    return _shares(rows, run) if table == "scores" else rows


def _shares(scores: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The scores that are shares of 1 to be had, as ``accuracy`` with its 95 % interval, beside what was asked."""
    shares = scores[scores["bounded"].fillna(False) & scores["higher_is_better"].fillna(False)]
    accuracy, margin = shares["score"], 1.96 * shares["stderr"]
    config = run.manifest.get("config") or {}
    asked = {name: None if config.get(name) is None else str(config[name]) for name in ("model", "backend")}
    figures = {"accuracy": accuracy, "accuracy_lo": accuracy - margin, "accuracy_hi": accuracy + margin}
    return shares.assign(status="ok", **figures, **asked)


def _identified(run: Run, rows: pd.DataFrame, axes: tuple[str, ...], commit: str | None) -> pd.DataFrame:
    """The rows with the columns of ``IDENTITY``; what a row says of itself goes before what the manifest says.

    Uuid and driver in the manifest are those of its device, so rows of another one do not get them.
    """
    known = _of_manifest(run, commit)
    if "device_uuid" in rows:
        rows = rows.assign(driver=rows["device_uuid"].map(_drivers(run)))
    rows = rows.assign(**{name: None for name in known if name not in rows})
    elsewhere = rows["device"].notna() & (rows["device"] != known["device"])
    for name, value in known.items():
        settled = rows[name].notna() | (elsewhere & (name in ("device_uuid", "driver")))
        rows[name] = rows[name].astype(object).where(settled, value)
    if "row_id" not in rows:
        rows["row_id"] = [_key(row) for row in rows.reindex(columns=axes).to_dict("records")]
    measured_on = rows["device_uuid"].where(rows["device_uuid"].notna(), rows["device"])
    keys = zip(rows["row_id"], measured_on, rows["tool_version"], strict=True)
    rows["series"] = [_key({"row": row, "device": device, "version": version}) for row, device, version in keys]
    texts = {name: "string" for name, kind in IDENTITY.items() if kind is str}
    return rows.astype({**texts, "started_at": "datetime64[us, UTC]", "seed": "Int64"})


def _of_manifest(run: Run, commit: str | None) -> dict[str, Any]:
    manifest = run.manifest
    device, seed = manifest.get("device") or {}, manifest.get("seed")
    git = manifest["git"] if isinstance(manifest.get("git"), dict) else {}
    texts = {
        "run_id": run.run_id,
        "ended_at": manifest.get("ended_at"),
        "tool_version": manifest.get("tool_version"),
        "device": device.get("name") or "CPU",
        "device_uuid": device.get("uuid"),
        "driver": device.get("driver"),
        "commit": commit or git.get("commit"),
        "packages": json.dumps(manifest.get("packages") or {}, sort_keys=True),
    }
    plain = {name: None if value is None else str(value) for name, value in texts.items()}
    return {**plain, "started_at": _started(run), "seed": seed if isinstance(seed, int) and seed < 2**63 else None}


def _drivers(run: Run) -> dict[str, str]:
    """Uuid → driver of the devices that the manifest lists: the nodes of a cluster may have different ones."""
    devices = [device for device in run.manifest.get("devices") or [] if device.get("driver") is not None]
    return {str(device.get("uuid")): str(device["driver"]) for device in devices}


def _started(run: Run) -> datetime:
    try:
        started = datetime.fromisoformat(run.manifest["started_at"])
        if started.tzinfo is None:
            raise ValueError("no time zone")
    except (KeyError, TypeError, ValueError) as error:
        raise HistoryError(f"{run.path}: no start time in its manifest ({error}); it cannot be added") from error
    return started


def file_name(run: Run, rows: pd.DataFrame) -> str:
    """A name for these very rows: equal for equal ones, so that a run is not kept twice."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run.run_id):
        raise HistoryError(f"{run.path}: its run_id {run.run_id!r} cannot name a file; it cannot be added")
    digest = hashlib.blake2b(rows.to_csv().encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
    return f"{run.run_id}-{digest}.parquet"


def _key(fields: Mapping[Any, Any]) -> str:
    """A 16-digit key of these fields, undefined ones left out as ``Case.row_id`` does."""
    known = {str(name): value for name, value in fields.items() if not pd.isna(value)}
    return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8).hexdigest()
