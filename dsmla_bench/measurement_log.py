"""The measurements of a run as they come: what ``append`` has returned for is stored, whatever happens after.

In a folder   rows.jsonl            one Measurement a line, appended and synced; ``.lock`` keeps other processes out
At a URL      rows/000000.json …    one Measurement each, numbered as they came, while the run is measured
              rows.jsonl            the same together, written when the run is finished, so that it is read in one go

Object stores cannot append. To write rows.jsonl anew for every measurement would send the whole run each time, and to
keep it on the machine until the end would lose it with the machine. So each measurement is an object of its own: the
store has it when ``append`` returns, and nothing that is written later touches it. An object is created, never
replaced: a second process that measures into the same run finds its number taken and stops.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from upath import UPath

from dsmla_bench.places import Place, create, failing_as, files_below, read, read_all, write_whole
from dsmla_bench.rows import Measurement

LINES = "rows.jsonl"


class RunError(ValueError):
    """A run folder that cannot be used; the message names the path, what is wrong and what to do."""


class MeasurementLog(Protocol):
    """What a run needs of either kind. All raise RunError for what cannot be read or written."""

    def start(self) -> None:
        """Begin the log of a new run, and hold it."""

    def hold(self) -> None:
        """Keep other processes from appending, and make what a kill left ready to be appended to."""

    def read(self) -> list[Measurement]:
        """Everything that was appended, in order. A damaged last line is set aside with a warning."""

    def append(self, measurement: Measurement, number: int) -> None:
        """Store the measurement with this number, counted from 0, before returning."""

    def finish(self, measurements: Sequence[Measurement]) -> None:
        """The run is finished with these: let go of it."""


def log_of(run: Place) -> MeasurementLog:
    """The log of the run in that folder or at that URL."""
    return FileLog(run) if isinstance(run, Path) else ObjectLog(run)


class FileLog:
    """rows.jsonl in a folder."""

    def __init__(self, run: Path) -> None:
        self._run, self._file = run, run / LINES
        self._lock: IO[bytes] | None = None

    def start(self) -> None:
        """Begin the log of a new run, and hold it."""
        write_whole(self._file, b"")  # its name is stored before the first row is
        self._lock = self._locked()

    def hold(self) -> None:
        """Lock the run, and move a cut last line to rows.jsonl.cut. Raises RunError when another process has it."""
        with failing_as(RunError, self._run, "cannot be gone on with", "its rows are kept"):
            self._lock = self._locked()
            _set_aside_cut_line(self._file)

    def _locked(self) -> IO[bytes]:
        """The lock file, locked until it is closed. Raises RunError when another process has it, else OSError."""
        lock = open(self._run / ".lock", "ab", opener=_open_ordinary)  # noqa: SIM115 - held until the run is let go of
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            if isinstance(error, BlockingIOError):
                raise _taken(self._run) from error
            raise
        return lock

    def read(self) -> list[Measurement]:
        """Every whole line. A damaged last one is left out with a warning, one before it is a RunError."""
        with failing_as(RunError, self._file, "cannot be read", "the run folder is incomplete"):
            data = read(self._file)
        return list(_measurements(self._file, data))

    def append(self, measurement: Measurement, number: int) -> None:
        """Add a line and sync it to the disk."""
        line = measurement.to_json() + "\n"
        with (
            failing_as(RunError, self._run, "cannot be written any more", "its rows so far are kept"),
            open(self._file, "a", encoding="utf-8") as file,
        ):
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def finish(self, measurements: Sequence[Measurement]) -> None:
        """Unlock the run."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class ObjectLog:
    """rows/000000.json and so on at a URL, and rows.jsonl in place of the first of them."""

    def __init__(self, run: UPath) -> None:
        self._run, self._file = run, run / LINES

    def start(self) -> None:
        """Nothing: a run's manifest says that there is one."""

    def hold(self) -> None:
        """Nothing: a number that is taken tells of another process."""

    def read(self) -> list[Measurement]:
        """What is in rows.jsonl, then the objects with higher numbers."""
        with failing_as(RunError, self._run, "its rows cannot be read"):
            together = list(_measurements(self._file, self._read_lines()))
            files = [file for file in files_below(self._run / "rows") if int(file.stem) >= len(together)]
            contents = read_all(files)
        return [*together, *(_measurement(line, str(file)) for file, line in zip(files, contents, strict=True))]

    def _read_lines(self) -> bytes:
        try:
            return read(self._file)
        except FileNotFoundError:  # the run is not finished
            return b""

    def append(self, measurement: Measurement, number: int) -> None:
        """Create an object. One that is there is another process's, or this very one, whose receipt got lost."""
        file, data = self._run / "rows" / f"{number:06d}.json", measurement.to_json().encode("utf-8")
        with failing_as(RunError, self._run, "cannot be written any more", "its rows so far are kept"):
            is_stored = create(file, data) or read(file) == data
        if not is_stored:
            raise _taken(self._run)

    def finish(self, measurements: Sequence[Measurement]) -> None:
        """Put all measurements into one object. Raises RunError where that fails; each is stored in any case."""
        lines = "".join(f"{measurement.to_json()}\n" for measurement in measurements)
        with failing_as(RunError, self._run, "cannot be finished", "its rows are kept, go on with --resume"):
            write_whole(self._file, lines.encode("utf-8"))


def _taken(run: Place) -> RunError:
    return RunError(f"{run}: another process is measuring into this run; wait for it, or start a new run")


def _measurements(file: Place, data: bytes) -> Iterator[Measurement]:
    """The measurements of a file of lines; its damaged last line is set aside with a warning."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield _measurement(line, f"{file}:{number}")
        except RunError:
            if number < len(lines):
                raise
            warnings.warn(f"{file}:{number}: the last line is cut short and was set aside", stacklevel=2)


def _measurement(line: bytes, where: str) -> Measurement:
    try:
        return Measurement.from_json(line.decode("utf-8"))
    except ValueError as error:  # a UnicodeDecodeError is one
        raise RunError(f"{where}: {error}") from error


def _open_ordinary(path: str, flags: int) -> int:
    """A descriptor of a file. OSError for a link, which may lead anywhere, and a pipe, which would be waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _set_aside_cut_line(file: Path) -> None:
    """Move what follows the last good line of ``file`` into FILE.cut; the whole lines are never at risk.

    A measurement that lacks only the end of its line was read as one: it gets that.
    """
    lines = file.read_bytes().splitlines(keepends=True)
    if not lines or (lines[-1].endswith(b"\n") and _is_measurement(lines[-1])):
        return
    if _is_measurement(lines[-1]):
        lines[-1] += b"\n"
    else:
        aside = file.with_suffix(".jsonl.cut")
        write_whole(aside, (read(aside) if aside.exists() else b"") + lines.pop() + b"\n")
    write_whole(file, b"".join(lines))


def _is_measurement(line: bytes) -> bool:
    try:
        _measurement(line, "")
    except RunError:
        return False
    return True
