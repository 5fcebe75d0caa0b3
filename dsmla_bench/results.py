"""How a run lies on disk: the only reader and writer of run folders.

    RESULTS/<run_id>/manifest.json     what ran where: arguments, configuration, packages, device, calibration
                     rows.jsonl        one Measurement a line, flushed as it comes: what a kill leaves
                     rows.parquet      written when the sweep ends: one tidy row per case
                     samples.parquet   row_id, process, method, order, us: every raw sample
                     NAME.parquet      further tables of runs that are no sweep (see ``write_table``)

RESULTS is a folder or an fsspec URL such as s3://bucket/runs; there, a row is an object of its own until the run is
finished (``measurement_log``). A run is created once and never overwritten. ``Run.load(path)`` reads one, finished or
not; ``rows()`` and ``samples()`` give pandas frames with one dtype per column, also when empty. Neither torch nor a GPU
is needed to read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import secrets
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from dsmla_bench.column_types import field_types
from dsmla_bench.measurement_log import MeasurementLog, log_of
from dsmla_bench.measurement_log import RunError as RunError
from dsmla_bench.places import Place, Where, create, failing_as, links_out_of, place, read, reason, write_whole
from dsmla_bench.rows import Measurement, Row
from dsmla_bench.summary import summarise_all

SCHEMA_VERSION = 1
MOST_CELLS = 2**28
"""Of a table that is read; samples of a long run are a tenth of that."""
_MANIFEST_TYPES = {
    "run_id": str,
    "argv": list,
    "packages": dict,
    "device": dict,
    "devices": list,
    "calibration": dict,
    "config": dict,
    "default_revisions": dict,
    "options": dict,
}
"""What readers of a manifest rely on where the entry is there."""
_PANDAS_TYPES = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}


class ResumeError(RunError):
    """A run that cannot be gone on with: ``name``, of its "config" or "identity", is ``now`` and was ``was``."""

    def __init__(self, path: Place, what: str, name: str, was: Any, now: Any) -> None:
        super().__init__(f"{path}: cannot be resumed: {name} is {now} now and was {was}; start a new run")
        self.path, self.what, self.name, self.was, self.now = path, what, name, was, now


@dataclass
class Run:
    """One run folder: its manifest and the measurements read from or appended to it."""

    path: Place
    manifest: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    _log: MeasurementLog = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._log = log_of(self.path)

    @classmethod
    def create(cls, results: Where, manifest: dict[str, Any]) -> Run:
        """A new, empty run below the folder or URL ``results``, named by UTC time and a random suffix.

        Raises RunError when nothing can be written there.
        """
        results, started = place(results), datetime.now(UTC)
        run_id = f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        identity = {"schema_version": SCHEMA_VERSION, "run_id": run_id, "started_at": started.isoformat()}
        run = cls(results / run_id, {**identity, **manifest})
        with failing_as(RunError, results, "cannot create a run here", "name a writable place with --out"):
            if not create(run.path / "manifest.json", _as_json(run.manifest)):
                raise FileExistsError(f"{run_id} is there already")
            run._log.start()
        return run

    @classmethod
    def load(cls, path: Where) -> Run:
        """The run at ``path``, a folder or URL, finished or cut short. A damaged last line is set aside with a warning.

        Raises RunError when it is no run, or one written by a newer version of the schema.
        """
        path = place(path)
        _refuse_links_out_of(path)
        run = cls(path, _read_manifest(path))
        run.measurements = run._log.read()
        run._warn_of_damage()
        return run

    @classmethod
    def resume(cls, path: Where, config: dict[str, Any], identity: dict[str, Any] | None = None) -> Run:
        """The run at ``path``, ready for more measurements; a cut last line is set aside in rows.jsonl.cut.

        ``identity`` is what measures: device, packages, commit. A row must not mix two of them.

        ``config`` is what the caller is about to measure. Raises ResumeError when the run had another one.
        """
        run = cls.load(path)
        for what, wanted in (("config", config), ("identity", identity or {})):
            known = run.manifest.get(what) or {}
            for name in sorted(known.keys() | wanted.keys()):
                was, now = _plain(known.get(name)), _plain(wanted.get(name))
                if was != now:
                    raise ResumeError(run.path, what, name, was, now)
        run._log.hold()
        run.measurements = run._log.read()  # another process may have appended until it was held
        return run

    @property
    def run_id(self) -> str:
        """The run's name: start time in UTC and a random suffix."""
        return str(self.manifest["run_id"])

    def append(self, measurement: Measurement) -> None:
        """Add one measurement; it is stored when this returns."""
        self._log.append(measurement, len(self.measurements))
        self.measurements.append(measurement)

    def finish(self, **manifest: Any) -> None:
        """Write rows.parquet and samples.parquet and close the manifest with the given additions."""
        self.write_table("rows", self.rows())
        self.write_table("samples", self.samples())
        self.manifest.update(manifest, ended_at=self._now().isoformat())
        self.write_manifest()
        self._log.finish(self.measurements)

    def _now(self) -> datetime:
        """The time in UTC, later than any in the manifest though the clock was set back: states are ordered by it."""
        now = datetime.now(UTC)
        try:
            known = datetime.fromisoformat(self.manifest.get("ended_at") or self.manifest["started_at"])
            return max(now, known + timedelta(microseconds=1))
        except (KeyError, OverflowError, TypeError, ValueError):  # no time that this tool has written
            return now

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write NAME.parquet, replacing one that is there whole. Raises RunError when it cannot be written."""
        file, data = self.path / f"{name}.parquet", frame.to_parquet(index=False)
        with failing_as(RunError, file, "cannot be written"):
            write_whole(file, data)

    def table(self, name: str) -> pd.DataFrame:
        """What ``write_table`` wrote. Raises RunError when the run has no such table or it cannot be read."""
        file = self.path / f"{name}.parquet"
        with failing_as(RunError, file, "cannot be read"):
            try:
                data = read(file)
            except FileNotFoundError as error:
                held = ", ".join(sorted(found.name for found in self.path.glob("*.parquet"))) or "no table"
                raise RunError(f"{self.path}: has no {file.name}; it holds {held}") from error
        try:
            _require_few_cells(data)
            return pd.read_parquet(io.BytesIO(data), dtype_backend="numpy_nullable")
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            raise RunError(f"{file}: cannot be read as a table ({reason(error):.200})") from error

    def has_table(self, name: str) -> bool:
        """Whether the run has NAME.parquet. Raises RunError when the run's place cannot be reached."""
        with failing_as(RunError, self.path, "cannot be read"):
            return bool((self.path / f"{name}.parquet").is_file())

    def write_manifest(self) -> None:
        """Write manifest.json by replacing it whole. Raises RunError when it cannot be written."""
        file = self.path / "manifest.json"
        with failing_as(RunError, file, "cannot be written"):
            write_whole(file, _as_json(self.manifest))

    def _warn_of_damage(self) -> None:
        """Say where a finished run's rows.parquet is damaged: others read it, here rows come from the measurements."""
        if not self.manifest.get("ended_at"):
            return
        try:
            self.table("rows")
        except RunError as error:
            warnings.warn(f"{error}; its rows are taken from rows.jsonl", stacklevel=3)

    def summaries(self) -> list[Row]:
        """One Row per case, in the order in which cases were first measured."""
        return summarise_all(self.measurements)

    def rows(self) -> pd.DataFrame:
        """One row per case with the columns and types of ``Row``; undefined is <NA>."""
        return rows_frame(self.summaries())

    def records(self) -> list[dict[str, Any]]:
        """The rows as plain data for JSON, undefined as None."""
        return [dataclasses.asdict(row) for row in self.summaries()]

    def samples(self) -> pd.DataFrame:
        """Every raw sample: row_id, process, method, order (as measured), us."""
        records = [
            (row_id, m.process, method, order, us)
            for m in self.measurements
            for row_id in [m.case.row_id]
            for method, samples in m.samples.items()
            for order, us in enumerate(samples)
        ]
        types = {"row_id": "string", "process": "Int64", "method": "string", "order": "Int64", "us": "Float64"}
        return pd.DataFrame(records, columns=list(types)).astype(types)


def rows_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a frame with one nullable pandas dtype per column, the same for no rows at all."""
    return typed_frame(Row, rows)


def typed_frame(row_type: type, rows: Iterable[Any]) -> pd.DataFrame:
    """Instances of the dataclass ``row_type`` (fields int, float, bool or str, or None) as such a frame."""
    types = {name: _PANDAS_TYPES[kind] for name, kind in field_types(row_type).items()}
    # As objects first: pandas would take a column of integers and None through float, which holds 53 bits of a seed.
    frame = pd.DataFrame([vars(row) for row in rows], columns=list(types), dtype=object)
    return frame.astype(types)


def latest_run(results: Where) -> Place:
    """The newest run below a folder or URL. Raises RunError when there is none."""
    results = place(results)
    with failing_as(RunError, results, "cannot be listed"):
        runs = sorted(file.parent for file in results.glob("*/manifest.json"))
    if not runs:
        raise RunError(f"{results}: holds no run; measure one with `dsmla-bench kernels`")
    return runs[-1]


def config_hash(config: dict[str, Any]) -> str:
    """SHA-256 of a configuration: equal for equal ones, whatever the order of their fields."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _require_few_cells(data: bytes) -> None:
    """Raise ValueError for a table that is far larger unpacked than any of ours: a small file can hold one."""
    found = pq.read_metadata(io.BytesIO(data))
    if found.num_rows * found.num_columns > MOST_CELLS:
        raise ValueError(f"it has {found.num_rows} rows of {found.num_columns}, more than {MOST_CELLS} cells")


def _plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples as lists."""
    return json.loads(json.dumps(value))


def _as_json(manifest: dict[str, Any]) -> bytes:
    """A manifest as a file; paths keep the bytes that they have."""
    return (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogateescape")


def _refuse_links_out_of(path: Place) -> None:
    """Raise RunError for a run folder with a link that leads out of it: a run is data, with no say over other files."""
    with failing_as(RunError, path, "cannot be read"):
        links = links_out_of(path)
    if links:
        raise RunError(f"{path}: {', '.join(links)} leads out of the run; put what it leads to in its place")


def _read_manifest(path: Place) -> dict[str, Any]:
    file = path / "manifest.json"
    with failing_as(RunError, file, "cannot be read as a manifest"):
        try:
            data = read(file)
        except (FileNotFoundError, NotADirectoryError) as error:
            why = "" if isinstance(path, Path) else f": {reason(error)}"
            raise RunError(
                f"{path}: not a run (no manifest.json{why}); give the folder that `dsmla-bench kernels` printed"
            ) from error
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read as a manifest ({reason(error):.200})") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{file}: schema version {version!r:.60}, this dsmla-bench reads {SCHEMA_VERSION}; "
            "use the dsmla-bench that wrote the run"
        )
    if manifest.get("run_id") is None:
        raise RunError(f"{file}: has no run_id, which names the run")
    for name, kind in _MANIFEST_TYPES.items():
        if manifest.get(name) is not None and not isinstance(manifest[name], kind):
            raise RunError(f"{file}: {name} must be a {kind.__name__}, found {type(manifest[name]).__name__}")
    if not all(isinstance(device, dict) for device in manifest.get("devices") or []):
        raise RunError(f"{file}: devices must be a list of objects, one for each device")
    return dict(manifest)
