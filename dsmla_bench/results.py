"""How a run lies on disk: the only reader and writer of run folders.

    RESULTS/<run_id>/manifest.json     what ran where: arguments, configuration, packages, device, calibration
                     rows.jsonl        one Measurement a line, flushed as it comes: what a kill leaves
                     rows.parquet      written when the sweep ends: one tidy row per case
                     samples.parquet   row_id, process, method, order, us: every raw sample
                     NAME.parquet      further tables of runs that are no sweep (see ``write_table``)

A run is created once and never overwritten. ``Run.load(path)`` reads one, finished or not; ``rows()`` and ``samples()``
give pandas frames with one dtype per column, also when empty. Neither torch nor a GPU is needed to read.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import secrets
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, get_args, get_type_hints

import pandas as pd

from dsmla_bench.rows import Measurement, Row
from dsmla_bench.summary import summarise_all

SCHEMA_VERSION = 1
_MANIFEST_TYPES = {
    "run_id": str,
    "argv": list,
    "packages": dict,
    "device": dict,
    "calibration": dict,
    "config": dict,
    "default_revisions": dict,
}
"""What readers of a manifest rely on where the entry is there."""
_PANDAS_TYPES = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}


class RunError(ValueError):
    """A run folder that cannot be used; the message names the path, what is wrong and what to do."""


@dataclass
class Run:
    """One run folder: its manifest and the measurements read from or appended to it."""

    path: Path
    manifest: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    _lock: IO[bytes] | None = field(default=None, repr=False)

    @classmethod
    def create(cls, results: Path, manifest: dict[str, Any]) -> Run:
        """A new, empty run below the folder ``results``, named by UTC time and a random suffix.

        Raises RunError when the folder cannot be written.
        """
        started = datetime.now(UTC)
        run_id = f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
        path = Path(results) / run_id
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise RunError(
                f"{results}: cannot create a run here ({error.strerror}); name a writable folder with --out"
            ) from error
        identity = {"schema_version": SCHEMA_VERSION, "run_id": run_id, "started_at": started.isoformat()}
        run = cls(path, {**identity, **manifest})
        run.write_manifest()
        (path / "rows.jsonl").touch()
        run._hold()
        return run

    def _hold(self) -> None:
        """Keep other processes from appending until this run is finished or let go of. Raises RunError if one does."""
        self._lock = open(self.path / ".lock", "wb")  # noqa: SIM115 - held until the run is let go of
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"{self.path}: another process is measuring into this run; wait for it, or start a new run"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """The run at ``path``, finished or cut short. A damaged last line is set aside with a warning.

        Raises RunError when it is no run, or one written by a newer version of the schema.
        """
        path = Path(path)
        manifest = _read_manifest(path)
        return cls(path, manifest, list(_read_measurements(path / "rows.jsonl")))

    @classmethod
    def resume(cls, path: str | Path, config: dict[str, Any], identity: dict[str, Any] | None = None) -> Run:
        """The run at ``path``, ready for more measurements; a cut last line is set aside in rows.jsonl.cut.

        ``identity`` is what measures: device, packages, commit. A row must not mix two of them.

        ``config`` is what the caller is about to measure. Raises RunError when the run had another one, naming
        the field that differs.
        """
        run = cls.load(path)
        for what, wanted in (("config", config), ("identity", identity or {})):
            known = run.manifest.get(what) or {}
            for name in sorted(known.keys() | wanted.keys()):
                if _plain(known.get(name)) != _plain(wanted.get(name)):
                    found = f"{name} is {_plain(wanted.get(name))} now and was {_plain(known.get(name))}"
                    raise RunError(f"{run.path}: cannot be resumed: {found}; start a new run")
        run._hold()
        _set_aside_cut_line(run.path / "rows.jsonl")
        return run

    @property
    def run_id(self) -> str:
        """The run's name: start time in UTC and a random suffix."""
        return str(self.manifest["run_id"])

    def append(self, measurement: Measurement) -> None:
        """Add one measurement and flush it to disk before returning."""
        line = measurement.to_json() + "\n"
        try:
            with open(self.path / "rows.jsonl", "a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be written any more ({error.strerror}); its rows so far are kept"
            ) from error
        self.measurements.append(measurement)

    def finish(self, **manifest: Any) -> None:
        """Write rows.parquet and samples.parquet and close the manifest with the given additions."""
        for name, frame in (("rows", self.rows()), ("samples", self.samples())):
            # As bytes: pyarrow cannot open a path that the locale cannot encode.
            (self.path / f"{name}.parquet").write_bytes(frame.to_parquet(index=False))
        self.manifest.update(manifest, ended_at=datetime.now(UTC).isoformat())
        self.write_manifest()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_table(self, name: str, frame: pd.DataFrame) -> None:
        """Write NAME.parquet, replacing one that is there whole. Raises RunError when the folder cannot be written."""
        target = self.path / f"{name}.parquet"
        temporary = target.with_suffix(".parquet.tmp")
        try:
            temporary.write_bytes(frame.to_parquet(index=False))
            temporary.replace(target)
        except OSError as error:
            raise RunError(f"{target}: cannot be written ({error.strerror})") from error

    def table(self, name: str) -> pd.DataFrame:
        """What ``write_table`` wrote. Raises RunError when the run has no such table or it cannot be read."""
        file = self.path / f"{name}.parquet"
        if not file.is_file():
            held = ", ".join(sorted(found.name for found in self.path.glob("*.parquet"))) or "no table"
            raise RunError(f"{self.path}: has no {file.name}; it holds {held}")
        try:
            return pd.read_parquet(io.BytesIO(file.read_bytes()), dtype_backend="numpy_nullable")
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            raise RunError(f"{file}: cannot be read as a table ({error})") from error

    def has_table(self, name: str) -> bool:
        """Whether the run has NAME.parquet."""
        return (self.path / f"{name}.parquet").is_file()

    def write_manifest(self) -> None:
        """Write manifest.json by replacing it whole, so that a kill never leaves half a file."""
        target = self.path / "manifest.json"
        temporary = target.with_suffix(".json.tmp")
        text = json.dumps(self.manifest, indent=2, ensure_ascii=False) + "\n"
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
        temporary.replace(target)

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
            (m.case.row_id, m.process, method, order, us)
            for m in self.measurements
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


def field_types(row_type: type) -> dict[str, type]:
    """Field → its Python type (int, float, bool or str), None left out, of a dataclass."""
    return {name: (get_args(hint) or (hint,))[0] for name, hint in get_type_hints(row_type).items()}


def latest_run(results: Path) -> Path:
    """The newest run folder below ``results``. Raises RunError when there is none."""
    runs = sorted(path.parent for path in Path(results).glob("*/manifest.json"))
    if not runs:
        raise RunError(f"{results}: holds no run; measure one with `dsmla-bench kernels`")
    return runs[-1]


def config_hash(config: dict[str, Any]) -> str:
    """SHA-256 of a configuration: equal for equal ones, whatever the order of their fields."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples as lists."""
    return json.loads(json.dumps(value))


def _set_aside_cut_line(file: Path) -> None:
    """Move what follows the last good line of ``file`` into FILE.cut; the whole lines are never at risk."""
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    cut = b""
    if lines and not (lines[-1].endswith(b"\n") and _is_measurement(lines[-1])):
        cut = lines.pop()
    if cut:
        with open(file.with_suffix(".jsonl.cut"), "ab") as aside:
            aside.write(cut + b"\n")
        replacement = file.with_suffix(".jsonl.tmp")
        replacement.write_bytes(b"".join(lines))
        replacement.replace(file)


def _is_measurement(line: bytes) -> bool:
    try:
        Measurement.from_json(line.decode())
    except (ValueError, UnicodeDecodeError):
        return False
    return True


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(
            f"{path}: not a run (no manifest.json); give the folder that `dsmla-bench kernels` printed"
        ) from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RunError(f"{file}: cannot be read as a manifest ({error})") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise RunError(
            f"{file}: schema version {version!r}, this dsmla-bench reads {SCHEMA_VERSION}; "
            "use the dsmla-bench that wrote the run"
        )
    for name, kind in _MANIFEST_TYPES.items():
        if manifest.get(name) is not None and not isinstance(manifest[name], kind):
            raise RunError(f"{file}: {name} must be a {kind.__name__}, found {type(manifest[name]).__name__}")
    return dict(manifest)


def _read_measurements(file: Path) -> Iterable[Measurement]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror}); the run folder is incomplete") from error
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield Measurement.from_json(line.decode("utf-8"))
        except ValueError as error:
            if number < len(lines):
                raise RunError(f"{file}:{number}: {error}") from error
            warnings.warn(f"{file}:{number}: the last line is cut short and was set aside", stacklevel=2)
