"""The history of many runs: an append-only Parquet data set in a folder or at any fsspec URL.

    STORE/table=rows/gpu=nvidia-h200/month=2026-11/uuid=gpu-5c0e/<run_id>-<digest>.parquet   rows of one run and GPU
          table=errors/…                                                         further tables, see ``history_rows``

A file appears whole or not at all, is never changed, and has a name of its own: any number of processes may add runs at
once, on one machine or many, and there is no index that they would have to agree on. ``add`` returns when the store has
the run; to add it again changes nothing. Of a run that was resumed and added again the later state is read. A file that
cannot be read is set aside: ignored with a warning that names it, and left where it is.

``history_rows`` says what the columns are. pyarrow, pandas and DuckDB read the folder as it is; its levels are hive
partitions, of which a reader lists and opens no more than it asks for. This is its only writer.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dsmla_bench.history_rows import IDENTITY, TABLES, HistoryError, file_name, folder_name, partitions
from dsmla_bench.places import Place, Where, create, failing_as, files_below, folders_in, place, read_all
from dsmla_bench.results import Run

REQUIRED = ("series", "row_id", "run_id", "started_at", "device")
"""The columns that no row may leave open."""

BATCH = 256
"""Files that are read and put together at a time."""


@dataclass(frozen=True)
class Added:
    """What ``add`` did: the files that hold the run, the rows in them, and how many of the files are new."""

    files: tuple[str, ...]
    rows: int
    new: int


@dataclass(frozen=True)
class Part:
    """What is wanted of a history: runs from the month ``since`` ("2026-11") on, of the GPUs that ``gpu`` names.

    ``gpu`` is a model ("NVIDIA H200") or the uuid of one GPU, or how one of them begins. None is all.
    """

    since: str | None = None
    gpu: str | None = None

    def has(self, folder: str) -> bool:
        """Whether a folder gpu=MODEL or uuid=UUID is named."""
        return self.gpu is None or folder.partition("=")[2].startswith(folder_name(self.gpu))

    def reaches(self, folder: str) -> bool:
        """Whether a folder month=MONTH is late enough."""
        return self.since is None or folder >= f"month={self.since}"

    def __str__(self) -> str:
        """As it ends a sentence: " of GPU-5c0e since 2026-11", nothing for everything."""
        return (f" of {self.gpu}" if self.gpu else "") + (f" since {self.since}" if self.since else "")


EVERYTHING = Part()


class History:
    """A store of runs at ``url``: a folder, or a URL such as ``s3://bucket/path``."""

    def __init__(self, url: Where) -> None:
        """Raises PlaceError for a URL that cannot be served here."""
        self.url = str(url)
        self._root = place(url)

    def add(self, run: Run, commit: str | None = None) -> Added:
        """Append the tables of ``run`` and return when the store has them.

        ``commit`` is what was measured, where that is not this package's own source. Raises HistoryError when the run
        has nothing to keep or the store cannot be written.
        """
        files, rows, new = [], 0, 0
        for folder, frame in partitions(run, commit):
            file, data = self._root / folder / file_name(run, frame), _to_parquet(frame)
            with failing_as(HistoryError, self._root, "cannot be written", "the run was not added, add it again"):
                new += create(file, data)
            files.append(str(file))
            rows += len(frame)
        if not files:
            raise HistoryError(f"{run.path}: has no row to keep; add a run of `dsmla-bench kernels` or `error`")
        return Added(tuple(files), rows, new)

    def frame(self, table: str = "rows", columns: Iterable[str] | None = None, part: Part = EVERYTHING) -> pd.DataFrame:
        """All rows of ``table`` by time: numbers and truth values as float64, texts as categories, undefined as NaN.

        ``columns`` are read, where there are such, beside those of ``IDENTITY``; all of them by default. Files outside
        ``part`` are not read. The frame is empty where nothing was added. Raises HistoryError when the store cannot be
        listed or read.
        """
        wanted = None if columns is None else {*IDENTITY, *columns}
        batches, schema = [], _known_schema(table, wanted)
        for contents in self._batches(self._paths(table, part)):
            tables = [schema.empty_table()]
            for file, data in contents:
                try:
                    found = _parse(data, wanted)
                    schema = pa.unify_schemas([schema, found.schema])
                except (OSError, pa.ArrowException, ValueError) as error:
                    warnings.warn(f"{file}: set aside, it is no file of a history ({error})", stacklevel=2)
                else:
                    tables.append(found)
            batches.append(_together(tables).combine_chunks())  # small files' buffers are larger than what they hold
        return _newest_states(_together([schema.empty_table(), *batches]).to_pandas())

    def runs(self, part: Part = EVERYTHING) -> list[dict[str, Any]]:
        """What ``IDENTITY`` says of each run in that part, by time: texts, also ``started_at``, undefined as None."""
        found: dict[str, dict[str, Any]] = {}
        for table in TABLES:
            runs = self.frame(table, (), part).drop_duplicates("run_id").drop(columns=["series", "row_id"])
            plain = runs.astype({"started_at": "string"}).astype(object)
            for run in plain.where(plain.notna(), None).to_dict("records"):
                found.setdefault(run["run_id"], {str(name): value for name, value in run.items()})
        return sorted(found.values(), key=lambda run: str(run["started_at"]))

    def _paths(self, table: str, part: Part) -> list[Place]:
        """The Parquet files of ``table`` in that part, by name."""
        with failing_as(HistoryError, self._root, "cannot be listed"):
            models = folders_in(self._root / f"table={table}")
            named = [model for model in models if part.has(model.name)]
            months = [month for model in named or models for month in folders_in(model) if part.reaches(month.name)]
            if not named:
                months = [gpu for month in months for gpu in folders_in(month) if part.has(gpu.name)]
            return [file for folder in months for file in files_below(folder) if file.suffix == ".parquet"]

    def _batches(self, files: list[Place]) -> Iterator[list[tuple[Place, bytes]]]:
        """Files with their contents, as many together as are read at once."""
        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            with failing_as(HistoryError, self._root, "cannot be read", "try again"):
                contents = read_all(some)
            yield list(zip(some, contents, strict=True))


def _to_parquet(frame: pd.DataFrame) -> bytes:
    """A file without what pandas says of its own types, which would be a third of the bytes."""
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None), file)
    return file.getvalue()


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


def _together(tables: list[pa.Table]) -> pa.Table:
    """The rows of all of them; columns that some lack are null there, and every text is kept once."""
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries()


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
