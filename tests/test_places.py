"""Folders on disks: what file URLs name, and what is on the disk when a write has returned."""

import errno
import os
import stat
from pathlib import Path

import pytest

from dsmla_bench.places import PlaceError, create, place, write_whole
from dsmla_bench.results import Run

# What a URL of a file names


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///data/runs", "/data/runs"),
        ("file://localhost/data/runs", "/data/runs"),
        ("FILE://LOCALHOST/data/runs", "/data/runs"),
        ("file:/data/runs", "/data/runs"),
        ("local:///data/runs", "/data/runs"),
        ("file:///data/my%20runs/100%25", "/data/my runs/100%"),
        ("file:///data/Pr%C3%BCfstand", "/data/Prüfstand"),
        ("file:///data/Prüfstand", "/data/Prüfstand"),
        ("file:///data/%FF", os.fsdecode(b"/data/\xff")),
        ("data/50%25", "data/50%25"),
        ("~/file:x", "~/file:x"),
    ],
)
def test_a_url_of_a_file_is_its_path_on_this_machine(url, path):
    assert place(url) == Path(path)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file://", "file://: names no path; give one as in file:///data/runs"),
        ("file://localhost", "file://localhost: names no path; give one as in file:///data/runs"),
        ("file:runs", "file:runs: names no path; give one as in file:///data/runs"),
        (
            "file://runs/today",
            "file://runs/today: is on the host runs, not here; give a path of this machine as in file:/",
        ),
        ("file:///a?b", "file:///a?b: has a query or fragment, which no file has; write %3F for ? and %23 for #"),
        ("file:///a#b", "file:///a#b: has a query or fragment, which no file has; write %3F for ? and %23 for #"),
        ("file:///a%00b", "file:///a%00b: has a zero byte in it, which no path may have; name another place"),
        ("a\0b", "a\\0b: has a zero byte in it, which no path may have; name another place"),
        ("", "an empty path names no place; name a folder, . for this one"),
    ],
)
def test_what_names_no_place_is_refused_in_one_sentence_before_anything_is_made(url, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlaceError) as refused:
        Run.create(url, {})
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


# What is on the disk


@pytest.fixture
def synced(monkeypatch):
    """What is asked of the disk: "content" or "names" are synced, or a file is renamed ("rename")."""
    log, fsync, replace = [], os.fsync, Path.replace

    def logged_fsync(descriptor):
        log.append("names" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def logged_replace(path, target):
        log.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "replace", logged_replace)
    return log


def refuse_to_sync_folders(monkeypatch, number):
    """os.fsync fails with this errno for folders, and does nothing for files."""

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("make", [write_whole, create])
def test_a_file_that_is_written_whole_outlives_a_power_cut_under_its_name(tmp_path, synced, make):
    make(tmp_path / "file", b"x")
    assert synced == ["content", "rename", "names"]


def test_so_do_the_folders_that_are_made_for_it(tmp_path, monkeypatch):
    inodes = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: inodes.add(os.fstat(descriptor).st_ino))
    write_whole(tmp_path / "a" / "b" / "file", b"x")
    assert {folder.stat().st_ino for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")} <= inodes


def test_the_log_of_a_run_is_there_before_its_first_row_is(tmp_path, synced):
    Run.create(tmp_path, {})
    assert synced == ["names", *["content", "rename", "names"] * 2], "its folder, manifest and log"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_a_folder_is_written_all_the_same(tmp_path, monkeypatch, number):
    refuse_to_sync_folders(monkeypatch, number)
    write_whole(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_folder_that_fails_to_be_synced_is_no_success(tmp_path, monkeypatch):
    refuse_to_sync_folders(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_whole(tmp_path / "file", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_may_be_written_but_not_read_is_written(tmp_path, monkeypatch):
    """By hand, since root may read everything."""
    os_open = os.open

    def open_files_only(path, *rest, **named):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os_open(path, *rest, **named)

    monkeypatch.setattr(os, "open", open_files_only)
    write_whole(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"
