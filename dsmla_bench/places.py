"""Where runs and histories lie: a folder on a disk, or one at any fsspec URL. The only file that tells the two apart.

``place("runs")`` is a ``Path``; ``place("s3://bucket/runs")`` is universal_pathlib's ``UPath``, which is used like one.
What others may be reading is written through ``write_whole`` and ``create``: it appears whole or not at all, and is
stored when they return. On a disk that takes a temporary name, a rename, and the folder synced behind it; an object
store shows and acknowledges objects in no other way.

Object stores raise errors of their own libraries. ``failing_as`` makes one sentence of whatever comes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from upath import UPath

Place: TypeAlias = Path | UPath
Where: TypeAlias = str | Place
"""A place, or its path or URL."""

MOST_BYTES = 2**30
"""Of a file that is read: a run of a whole day takes less than a tenth."""
AT_ONCE = 32
"""Requests to an object store at a time: it answers many as fast as one."""
PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.:_-]+://")
FILE_SCHEMES = ("file:", "local:")
UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
"""Errors of a folder that cannot be synced: its file system has no such operation, or it may be written and not read.
Then nothing more can be done for a name in it."""

CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
ADVICE = {
    "ImportError": "for s3:// install 'dsmla-bench[s3]', for others the package that is named",
    "NoCredentialsError": CREDENTIALS,
    "PartialCredentialsError": CREDENTIALS,
    "PermissionError": "check that these credentials may read and write there",
}
"""What helps against an error at a URL, by the name of its class: botocore need not be installed."""


class PlaceError(ValueError):
    """A URL that cannot be used; the message says why and what to do."""


def place(where: Where) -> Place:
    """The folder or file at a path or URL, which need not be there: a URL's store is not asked yet.

    Raises PlaceError for what names no place on this machine, a protocol that fsspec does not know, or one whose
    package is not installed.
    """
    if not isinstance(where, str):
        return where
    if not where:
        raise PlaceError("an empty path names no place; name a folder, . for this one")
    if where.lower().startswith(FILE_SCHEMES):
        return _at_path(_path_of(where), where)
    return _at_url(where) if "://" in where else _at_path(where, where)


def _path_of(url: str) -> str:
    """The path in file:///path or file://localhost/path (RFC 8089), where %20 stands for a blank, and so on."""
    parts = urlsplit(url)
    if parts.netloc.lower() not in ("", "localhost"):
        here = "give a path of this machine as in file:///data/runs"
        raise PlaceError(f"{url}: is on the host {parts.netloc}, not here; {here}")
    if not parts.path.startswith("/"):
        raise PlaceError(f"{url}: names no path; give one as in file:///data/runs")
    if parts.query or parts.fragment:
        raise PlaceError(f"{url}: has a query or fragment, which no file has; write %3F for ? and %23 for #")
    return unquote(parts.path, errors="surrogateescape")


def _at_path(path: str, where: str) -> Path:
    if "\0" in path:
        shown = where.replace("\0", r"\0")
        raise PlaceError(f"{shown}: has a zero byte in it, which no path may have; name another place")
    return Path(path)


def _at_url(url: str) -> UPath:
    if not PROTOCOL.match(url):  # universal_pathlib would take it for a path, and one letter for a drive
        raise PlaceError(f"{url}: cannot be opened (it is taken for a path); give a path without :// or a URL")
    try:
        # Others add files at any time: what was listed a moment ago is not worth keeping.
        found = UPath(url, use_listings_cache=False)
        found.fs  # noqa: B018 - this imports the package that serves the protocol
    except Exception as error:  # a store of whatever kind is made here, which may want arguments that no URL gives
        raise PlaceError(_sentence(f"{url}: cannot be opened ({reason(error)})", _advice(error))) from error
    return found


@contextlib.contextmanager
def failing_as(error: type[ValueError], where: Place, what: str, todo: str = "") -> Iterator[None]:
    """Raise ``error`` for whatever reading and writing at ``where`` raises: place, ``what``, the reason, what to do.

    Nothing else belongs inside: of a URL any exception but ``error`` is taken for one of its store's library.
    """
    try:
        yield
    except error:
        raise
    except Exception as found:
        if isinstance(where, Path) and not isinstance(found, OSError):
            raise
        advice = "" if isinstance(where, Path) else _advice(found)
        raise error(_sentence(f"{where}: {what} ({reason(found)})", advice, todo)) from found


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def reason(found: BaseException) -> str:
    """What an exception says, in one line."""
    text = found.strerror if isinstance(found, OSError) and found.strerror else str(found)
    return " ".join(text.split()).rstrip(".") or type(found).__name__


def _advice(found: Exception) -> str:
    return next((ADVICE[kind.__name__] for kind in type(found).__mro__ if kind.__name__ in ADVICE), "")


def read(file: Place) -> bytes:
    """The content of a file, in one request.

    On a disk, OSError for one that is no ordinary file, or larger than any of ours: it may come from anywhere.
    """
    if not isinstance(file, Path):
        return bytes(file.fs.cat_file(file.path))
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no ordinary file", str(file))
    if found.st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than the {MOST_BYTES} that are read", str(file))
    return file.read_bytes()


def read_all(files: Sequence[Place]) -> list[bytes]:
    """The contents of files of one store. A store at a URL is asked for many at once."""
    if all(isinstance(file, Path) for file in files):
        return [read(file) for file in files]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(read, files))


def links_out_of(folder: Place) -> list[str]:
    """The names in a folder on a disk that are links to what lies outside of it; none at a URL."""
    if not isinstance(folder, Path) or not folder.is_dir():
        return []
    home = os.path.realpath(folder)
    links = (entry for entry in folder.iterdir() if entry.is_symlink())
    return sorted(entry.name for entry in links if not Path(os.path.realpath(entry)).is_relative_to(home))


def files_below(folder: Place) -> list[Place]:
    """All files below a folder, by name; none where there is no such folder."""
    if isinstance(folder, Path):
        return sorted(path for path in folder.rglob("*") if path.is_file())
    root = folder.path.rstrip("/")
    return sorted(folder / path.removeprefix(f"{root}/") for path in folder.fs.find(root))


def folders_in(folder: Place) -> list[Place]:
    """The folders right below a folder, by name; none where there is no such folder."""
    if isinstance(folder, Path):
        return sorted(path for path in folder.glob("*") if path.is_dir())
    try:
        found = folder.fs.ls(folder.path, detail=True)
    except FileNotFoundError:
        folder.fs.find(folder.path)  # this one fails where not even the bucket is there
        return []
    names = [entry["name"].rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == "directory"]
    return [folder / name for name in sorted(names)]


def write(file: Place, data: bytes) -> Place:
    """Write a file that nobody is reading yet, and the folders above it; the file."""
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    else:
        file.fs.pipe_file(file.path, data)
    return file


def write_whole(file: Place, data: bytes) -> None:
    """Write a file, replacing one that is there; no reader sees it half written, and it is stored when this returns."""
    if not isinstance(file, Path):
        file.fs.pipe_file(file.path, data)
        return
    _make_folder(file.parent)
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a disk that is full, every byte counts
        raise
    _sync_names(file.parent)


def _make_folder(folder: Path) -> None:
    """Make a folder on a disk and those above it, so that they outlive a power cut."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_names(made.parent)


def _sync_names(folder: Path) -> None:
    """Store the names in a folder: to sync a file stores what is in it, not where it is. A rename is one of names."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise


def create(file: Place, data: bytes) -> bool:
    """Write a file that is never replaced; whether it was not there already.

    Of several that create one name at once in an object store, one succeeds.
    """
    if isinstance(file, Path):
        if file.exists():
            return False
        write_whole(file, data)
        return True
    try:
        file.fs.pipe_file(file.path, data, mode="create")
    except FileExistsError:
        return False
    return True
