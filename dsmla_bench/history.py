"""The history of many runs: an append-only Parquet data set in a folder or at any fsspec URL.

    STORE/table=rows/gpu=nvidia-h200/month=2026-11/<run_id>-<digest>.parquet     the rows of one run, written once
          table=errors/…                                                         further tables, see ``history_rows``

A file appears whole or not at all, is never changed, and has a name of its own: any number of processes may add runs at
once, on one machine or many, and there is no index that they would have to agree on. ``add`` returns when the store has
the run; to add it again changes nothing. Of a run that was resumed and added again the later state is read. A file that
cannot be read is set aside: ignored with a warning that names it, and left where it is.

``history_rows`` says what the columns are. pyarrow, pandas and DuckDB read the folder as it is; its three levels are
hive partitions. This is its only writer.
"""

from __future__ import annotations

import io
import os
import secrets
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dsmla_bench.history_rows import IDENTITY, TABLES, HistoryError, file_name, partitions
from dsmla_bench.results import Run

REQUIRED = ("series", "row_id", "run_id", "started_at", "device")
"""The columns that no row may leave open."""

READERS = 16
"""Files read at once: object storage answers many requests as fast as one."""


@dataclass(frozen=True)
class Added:
    """What ``add`` did: the files that hold the run, the rows in them, and how many of the files are new."""

    files: tuple[str, ...]
    rows: int
    new: int


class History:
    """A store of runs at ``url``: a folder, or a URL such as ``s3://bucket/path``."""

    def __init__(self, url: str) -> None:
        """Raises HistoryError for a URL that fsspec cannot serve here."""
        self.url = str(url)
        try:
            self._files, self._root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise HistoryError(f"{self.url}: cannot be opened as a history ({error})") from error

    def add(self, run: Run, commit: str | None = None) -> Added:
        """Append the tables of ``run`` and return when the store has them.

        ``commit`` is what was measured, where that is not this package's own source. Raises HistoryError when the run
        has nothing to keep or the store cannot be written.
        """
        files, rows, new = [], 0, 0
        for folder, frame in partitions(run, commit):
            path = f"{self._root}/{folder}/{file_name(run, frame)}"
            new += self._write(path, frame)
            files.append(self._files.unstrip_protocol(path))
            rows += len(frame)
        if not files:
            raise HistoryError(f"{run.path}: has no row to keep; add a run of `dsmla-bench kernels` or `error`")
        return Added(tuple(files), rows, new)

    def frame(
        self, table: str = "rows", columns: Iterable[str] | None = None, since: str | None = None
    ) -> pd.DataFrame:
        """All rows of ``table`` by time: numbers and truth values as float64, texts as categories, undefined as NaN.

        ``columns`` are read, where there are such, beside those of ``IDENTITY``; all of them by default. Of runs from
        before the month ``since`` ("2026-11") not even the files are read. The frame is empty where nothing was added.
        Raises HistoryError when the store cannot be listed or read.
        """
        wanted = None if columns is None else {*IDENTITY, *columns}
        parts, schema = [], _known_schema(table, wanted)
        with ThreadPoolExecutor(READERS) as pool:
            contents = zip(paths := self._paths(table, since), pool.map(self._read, paths), strict=True)
            for path, data in contents:
                try:
                    part = _parse(data, wanted)
                    schema = pa.unify_schemas([schema, part.schema])
                except (OSError, pa.ArrowException, ValueError) as error:
                    name = self._files.unstrip_protocol(path)
                    warnings.warn(f"{name}: set aside, it is no file of a history ({error})", stacklevel=2)
                else:
                    parts.append(part)
        together = pa.concat_tables([schema.empty_table(), *parts], promote_options="default")
        return _newest_states(together.unify_dictionaries().to_pandas())

    def runs(self) -> list[dict[str, Any]]:
        """What ``IDENTITY`` says of each run, by time: texts, ``started_at`` among them, undefined as None."""
        found: dict[str, dict[str, Any]] = {}
        for table in TABLES:
            runs = self.frame(table, ()).drop_duplicates("run_id").drop(columns=["series", "row_id"])
            plain = runs.astype({"started_at": "string"}).astype(object)
            for run in plain.where(plain.notna(), None).to_dict("records"):
                found.setdefault(run["run_id"], {str(name): value for name, value in run.items()})
        return sorted(found.values(), key=lambda run: str(run["started_at"]))

    def _paths(self, table: str, since: str | None) -> list[str]:
        """The Parquet files of ``table`` from that month on, by name."""
        self._files.invalidate_cache()
        try:
            found = self._files.find(f"{self._root}/table={table}")
        except Exception as error:  # object stores raise errors of their own libraries
            raise HistoryError(f"{self.url}: cannot be listed ({error})") from error
        folders = {path: path.split("/")[-2] for path in sorted(found) if path.endswith(".parquet")}
        return [path for path, folder in folders.items() if since is None or folder >= f"month={since}"]

    def _read(self, path: str) -> bytes:
        try:
            return bytes(self._files.cat_file(path))
        except Exception as error:  # as above
            raise HistoryError(f"{self._files.unstrip_protocol(path)}: cannot be read ({error}); try again") from error

    def _write(self, path: str, frame: pd.DataFrame) -> bool:
        """Put a file into the store; whether it was not there already."""
        try:
            if self._files.exists(path):
                return False
            data = frame.to_parquet(index=False)
            if isinstance(self._files, LocalFileSystem):
                _write_whole(path, data)
            else:
                self._files.pipe_file(path, data)
        except Exception as error:  # as above
            raise HistoryError(
                f"{self.url}: cannot be written ({error}); the run was not added, add it again"
            ) from error
        return True


def _write_whole(path: str, data: bytes) -> None:
    """A local file that no reader sees half written. An object of an object store needs no such care."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _known_schema(table: str, wanted: set[str] | None) -> pa.Schema:
    """The types of the columns that are known beforehand, so that one odd file cannot set them for all."""
    text, number = pa.dictionary(pa.int32(), pa.string()), pa.float64()
    columns = {**TABLES[table].types, **IDENTITY}
    types = {str: text, datetime: pa.timestamp("us", "UTC")}
    return pa.schema([(n, types.get(kind, number)) for n, kind in columns.items() if wanted is None or n in wanted])


def _parse(data: bytes, wanted: set[str] | None) -> pa.Table:
    """The wanted columns of a Parquet file in the types of ``History.frame``. Raises ValueError for what is none."""
    file = pq.ParquetFile(io.BytesIO(data))
    names = file.schema_arrow.names
    missing = [name for name in IDENTITY if name not in names]
    if missing:
        raise ValueError(f"it has no column {', '.join(missing)}")
    table = file.read(columns=[name for name in names if wanted is None or name in wanted])
    for name in REQUIRED:
        if table[name].null_count:
            raise ValueError(f"it has rows without {name}")
    columns = {name: _plain(name, table[name]) for name in table.column_names}
    return pa.table({name: column for name, column in columns.items() if not pa.types.is_null(column.type)})


def _plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string()).dictionary_encode()
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", "UTC"))
    if pa.types.is_null(kind):
        return column
    raise ValueError(f"its column {name} holds {kind}, which is neither number nor text")


def _newest_states(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows by time, each row of a run once: as it was when the run was last added."""
    order = ["started_at", "run_id", "ended_at"]
    ordered = rows.sort_values(order, kind="stable", na_position="first", key=_by_text)
    return ordered.drop_duplicates(["run_id", "row_id", "device_uuid"], keep="last", ignore_index=True)


def _by_text(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column to sort by: categories by their texts, not in the order in which they were first seen."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column
    return column.cat.reorder_categories(sorted(column.cat.categories))
