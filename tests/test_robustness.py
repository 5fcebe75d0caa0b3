"""Everything around a run that can go wrong: disks, folders, packages, and runs that are damaged or hostile.

A run folder is data from anywhere. It is read or refused in one sentence; nothing in it is executed, no link in it is
followed out of it, and no file of it is read without bound. What its files hold is fuzzed in test_fuzz_runs.py.
"""

import contextlib
import errno
import fcntl
import json
import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
from builders import case, h200_sweep, refused, run_of, timed
from processes import compiling_environment, run_command

from dsmla_bench import places, results
from dsmla_bench.evals.model_files import find_model
from dsmla_bench.reports.report import write_report
from dsmla_bench.results import Run, RunError

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.fixture
def run(tmp_path):
    return run_of(tmp_path / "runs", [timed(case(tokens=tokens), 5.0) for tokens in (1, 128)])


def fails_with(error, after=0):
    """A function that raises ``error`` once it was called ``after`` times, in place of os.fsync."""
    calls = iter(range(after))

    def fsync(_):
        if next(calls, None) is None:
            raise error

    return fsync


def assert_one_sentence(code, err):
    assert code == 2
    assert err.startswith("dsmla-bench: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


# Disks and folders


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
def test_a_disk_that_refuses_a_row_loses_that_row_only(tmp_path, monkeypatch, error):
    run = Run.create(tmp_path, {})
    run.append(timed(case(tokens=1), 5.0))
    monkeypatch.setattr(os, "fsync", fails_with(error))
    with pytest.raises(
        RunError, match=rf"{run.path}: cannot be written any more \({error.strerror}\); its rows so far"
    ):
        run.append(timed(case(tokens=2), 5.0))
    assert [m.case.tokens for m in run.measurements] == [1]
    monkeypatch.undo()
    run.finish()
    assert [row.tokens for row in Run.load(run.path).summaries()] in ([1], [1, 2])


@pytest.mark.parametrize("error", [FULL, READ_ONLY], ids=["full", "read-only"])
def test_a_disk_that_refuses_to_set_a_cut_line_aside_leaves_the_run_as_it_is(tmp_path, monkeypatch, error):
    run = Run.create(tmp_path, {"config": {}})
    run.append(timed(case(tokens=1), 5.0))
    run.finish()
    with open(run.path / "rows.jsonl", "ab") as file:
        file.write(b'{"case": ')
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    monkeypatch.setattr(os, "fsync", fails_with(error))
    with (
        pytest.warns(UserWarning, match="was set aside"),
        pytest.raises(RunError, match=rf"{run.path}: cannot be gone on with \({error.strerror}\); its rows are kept"),
    ):
        Run.resume(run.path, {})
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before


def folder(lock):
    lock.unlink()
    lock.mkdir()


def link_to_the_manifest(lock):
    lock.unlink()
    lock.symlink_to("manifest.json")


@pytest.mark.parametrize("damage", [folder, link_to_the_manifest])
def test_a_lock_that_is_no_ordinary_file_costs_nothing(tmp_path, damage):
    run = run_of(tmp_path, [timed(case(), 5.0)], config={})
    damage(run.path / ".lock")
    with contextlib.suppress(RunError):
        Run.resume(run.path, {})
    assert Run.load(run.path).measurements == run.measurements


def test_a_file_system_without_locks_is_refused_in_one_sentence(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    run = run_of(tmp_path, [timed(case(), 5.0)], config={})
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunError, match=rf"{run.path}: cannot be gone on with \(No locks available\); its rows"):
        Run.resume(run.path, {})
    with pytest.raises(RunError, match=rf"{tmp_path}: cannot create a run here \(.*No locks available"):
        Run.create(tmp_path, {})


@pytest.mark.parametrize("written", range(3), ids=["rows", "samples", "manifest"])
def test_a_disk_that_fills_up_while_a_run_is_finished_leaves_whole_files_and_no_litter(tmp_path, monkeypatch, written):
    run = Run.create(tmp_path, {})
    run.append(timed(case(), 5.0))
    monkeypatch.setattr(os, "fsync", fails_with(FULL, after=2 * written))  # a file and its name
    with pytest.raises(RunError, match=r"cannot be written \(No space left on device\)"):
        run.finish()
    monkeypatch.undo()
    assert not list(run.path.glob("*.tmp"))
    assert len(Run.load(run.path).measurements) == 1
    run.finish()
    assert Run.load(run.path).has_table("samples")


def test_a_limit_on_the_size_of_files_is_met_as_a_full_disk_is(tmp_path):
    """Without a fake: the system itself refuses to write more than 2000 bytes into a file."""
    script = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    sys.argv = ["dsmla-bench", *sys.argv[1:]]
    from dsmla_bench.cli import main
    main()
    """
    run = run_of(tmp_path / "runs", h200_sweep())
    command = [sys.executable, "-c", textwrap.dedent(script), "report", run.path, "--out", tmp_path / "out"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=compiling_environment())
    assert_one_sentence(done.returncode, done.stderr)
    assert done.stderr.endswith("out: cannot write the report here (File too large); name a writable folder\n")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    "command", ["export {run} --to csv --out /dev/full", "compare {run} {run} --markdown /dev/full"]
)
def test_a_file_that_takes_no_more_is_named(cli, run, command):
    code, _, err = cli(*command.format(run=run.path, file="/dev/full").split())
    assert_one_sentence(code, err)
    assert err == "dsmla-bench: /dev/full: cannot be written (No space left on device); name another file\n"


def test_an_output_that_takes_no_more_is_one_sentence(run):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dsmla_bench", "export", str(run.path), "--to", "csv"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=compiling_environment())
    assert_one_sentence(done.returncode, done.stderr)
    assert done.stderr.startswith("dsmla-bench: the output cannot be written: No space left on device; make room")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "compile --arch sm90 --ops write --formats bf16 --tokens 1 --out {file}",
            "{file}: cannot create a run here (",
        ),
        ("error --sigma 1 --tokens 8 --out {file}", "{file}: cannot create a run here ("),
        ("history add {run} --store {file}", "{file}: cannot be written (Not a directory); the run was not added"),
        ("report {run} --out {file}", "{file}: cannot write the report here ("),
        ("dashboard --store {store} --out {file}", "{file}: cannot write the dashboard here ("),
        ("report {file}", "{file}: not a run"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(cli, run, tmp_path, command, sentence):
    (tmp_path / "file").touch()
    assert cli("history", "add", run.path, "--store", tmp_path / "store")[0] == 0
    names = {"file": tmp_path / "file", "run": run.path, "store": tmp_path / "store"}
    code, _, err = cli(*command.format(**names).split())
    assert_one_sentence(code, err)
    assert sentence.format(**names) in err


# Damaged runs, by every command that reads one


def cut_manifest(run):
    (run / "manifest.json").write_bytes((run / "manifest.json").read_bytes()[:40])


def future_version(run):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))


def lines_that_are_none(run):
    (run / "rows.jsonl").write_bytes(b"\x00\xff{}\n" * 3)


def no_rows(run):
    (run / "rows.jsonl").unlink()


def rows_as_a_folder(run):
    no_rows(run)
    (run / "rows.jsonl").mkdir()


def rows_as_a_pipe(run):
    no_rows(run)
    os.mkfifo(run / "rows.jsonl")


def manifest_that_has_no_end(run):
    (run / "manifest.json").unlink()
    (run / "manifest.json").symlink_to("/dev/zero")


def rows_elsewhere(run):
    no_rows(run)
    (run / "rows.jsonl").symlink_to("../../secret.jsonl")


def report_elsewhere(run):
    (run / "report").symlink_to(run.parent)


DAMAGE = {
    cut_manifest: "manifest.json: cannot be read as a manifest (",
    future_version: "manifest.json: schema version 99, this dsmla-bench reads 1; use the dsmla-bench that wrote",
    lines_that_are_none: "rows.jsonl:1: ",
    no_rows: "rows.jsonl: cannot be read (No such file or directory); the run folder is incomplete",
    rows_as_a_folder: "rows.jsonl: cannot be read (it is no ordinary file); the run folder is incomplete",
    rows_as_a_pipe: "rows.jsonl: cannot be read (it is no ordinary file); the run folder is incomplete",
    manifest_that_has_no_end: "manifest.json leads out of the run; ",
    rows_elsewhere: "rows.jsonl leads out of the run; ",
    report_elsewhere: "report leads out of the run; ",
}
READERS = ["report {run}", "compare {run} {run}", "export {run} --to csv", "history add {run} --store {store}"]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("command", READERS, ids=lambda command: command.split()[0])
def test_a_damaged_run_is_refused_in_one_sentence_that_names_the_file(cli, run, tmp_path, command, damage):
    (tmp_path / "secret.jsonl").write_text('{"password": "hunter2"}\n')
    damage(run.path)
    code, out, err = cli(*command.format(run=run.path, store=tmp_path / "store").split())
    assert (code, out) == (2, "")
    assert_one_sentence(code, err)
    assert DAMAGE[damage] in err
    assert "hunter2" not in err


def test_a_folder_of_runs_may_itself_be_a_link(tmp_path, run):
    (tmp_path / "latest").symlink_to(run.path)
    (run.path / "copy.json").symlink_to("manifest.json")
    assert len(Run.load(tmp_path / "latest").measurements) == 2


def test_a_file_larger_than_any_of_ours_is_not_read(run, monkeypatch):
    monkeypatch.setattr(places, "MOST_BYTES", 1000)
    with pytest.raises(RunError, match=r"it has \d+ bytes, more than the 1000 that are read"):
        Run.load(run.path)


def test_a_table_that_unpacks_to_far_more_than_any_of_ours_is_not_read(run, monkeypatch):
    """By what its metadata say, before it is unpacked: a million equal values are a small file."""
    frame = pd.DataFrame({"a": [1] * 1_000_000, "b": ["x"] * 1_000_000})
    run.write_table("bomb", frame)
    assert (run.path / "bomb.parquet").stat().st_size < 10_000
    monkeypatch.setattr(results, "MOST_CELLS", 1_999_999)
    with pytest.raises(
        RunError, match=r"cannot be read as a table \(it has 1000000 rows of 2, more than 1999999 cells"
    ):
        run.table("bomb")


# Hostile runs


def test_a_report_is_written_inside_its_folder_whatever_an_operation_is_called(tmp_path):
    name = "x/../../../../escaped"
    run = run_of(tmp_path / "runs", [timed(case(name, tokens=tokens, heads=8), 5.0 * tokens) for tokens in (1, 2)])
    before = set(tmp_path.rglob("*")) - set(run.path.rglob("*"))
    write_report(run)
    assert len(list((run.path / "report").glob("us_x-*-escaped.png"))) == 1
    assert set(tmp_path.rglob("*")) - set(run.path.rglob("*")) == before


def test_a_link_in_a_report_is_replaced_and_not_followed(run, tmp_path):
    target = tmp_path / "profile"
    target.write_text("mine")
    (run.path / "report").mkdir()
    (run.path / "report" / "index.html").symlink_to(target)
    write_report(run)
    assert target.read_text() == "mine"
    assert "<html" in (run.path / "report" / "index.html").read_text(encoding="utf-8")


def test_a_run_cannot_steer_the_terminal(cli, tmp_path):
    escape = "\x1b]0;title\x07\x1b[2J\u202e"
    rows = [timed(case(), 5.0, device=f"H200{escape}"), refused(case(provider="vllm"), "skipped", f"why{escape}")]
    _, out, _ = cli("report", run_of(tmp_path / "runs", rows).path)
    assert r"device H200\x1b]0;title\x07\x1b[2J\u202e" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_a_sentence_on_a_hostile_file_cannot_either(cli, tmp_path):
    (tmp_path / "run\x1b[2J").mkdir()
    _, _, err = cli("report", "run\x1b[2J")
    assert err.startswith("dsmla-bench: run\\x1b[2J: not a run")


def test_no_command_that_a_run_gives_can_hold_a_second_one(cli, tmp_path):
    rows = [refused(case("x; rm -rf ~", provider="$(reboot)"), "runtime_error", "boom")]
    run = run_of(tmp_path / "runs", rows, config={"processes": "`id`", "seed": "&& id", "methods": ["| id"]})
    _, out, err = cli("report", run.path)
    assert err == ""
    (line,) = [line for line in out.splitlines() if line.startswith("repeat: ")]
    assert {"x; rm -rf ~", "$(reboot)", "`id`", "&& id", "| id"} <= set(shlex.split(line))


def test_nothing_in_a_run_is_unpickled_or_executed(run, tmp_path):
    """A pickle where a table should be is no table, whatever it would do."""
    frame = pd.DataFrame({"x": [1]})
    frame.to_pickle(run.path / "errors.parquet")
    with pytest.raises(RunError, match=r"errors.parquet: cannot be read as a table"):
        run.table("errors")
    package = Path(results.__file__).parent
    loaders = (
        "pickle.load",
        "read_pickle",
        "yaml.load(",
        "yaml.unsafe",
        "joblib",
        "allow_pickle=True",
        "weights_only=False",
    )
    found = [f"{file.name}: {word}" for file in package.rglob("*.py") for word in loaders if word in file.read_text()]
    assert found == []


# What is not ASCII


@pytest.mark.parametrize("command", ["report {place}", "report --config {place}.toml", "kernels --formats {place}"])
def test_a_sentence_on_what_is_not_ascii_can_be_printed_everywhere(command):
    """Case D12, for mistakes: standard error in the C locale has escapes for what it lacks, and no traceback."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}
    done = run_command(*command.format(place="Prüfstand试验").split(), **ascii_only)
    assert_one_sentence(done.returncode, done.stderr)
    assert done.stderr.isascii()
    assert r"Pr\udcc3\udcbcfstand" in done.stderr  # the bytes of a name that this locale cannot read


def test_an_options_file_that_is_not_ascii_is_read_and_written(cli, tmp_path):
    (tmp_path / "Prüfstand.toml").write_text('[kernels]\nout = "试验"\n', encoding="utf-8")
    code, out, err = cli("kernels", "--config", "Prüfstand.toml", "--dump-config")
    assert (code, err, 'out = "试验" # file' in out) == (0, "", True)


# Models


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pkl"])
def test_weights_that_are_programs_are_not_loaded(tmp_path, weights):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / weights).write_bytes(b"x")
    with pytest.raises(ValueError, match=r"holds no \*.safetensors, the only form of weights that is loaded"):
        find_model(str(tmp_path), online=False)


# Packages that are missing or broken


@pytest.mark.parametrize("state", ["missing", "broken"])
@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("lm_eval", "accuracy --limit 1"),
        ("s3fs", "report s3://bucket/run"),
        ("safetensors", "error --data {file} --tokens 1"),
        ("tomlkit", "list --dump-config"),
        ("plotly", "dashboard --store {file} --out site"),
    ],
)
def test_a_package_that_is_missing_or_broken_is_one_sentence_that_names_it(
    cli, tmp_path, monkeypatch, package, command, state
):
    folder = tmp_path / "packages" / package
    folder.mkdir(parents=True)
    missing, broken = f"ModuleNotFoundError({package!r})", f"ImportError('{package}.so: undefined symbol')"
    (folder / "__init__.py").write_text(f"raise {missing if state == 'missing' else broken}\n")
    monkeypatch.syspath_prepend(folder.parent)
    for name in [
        name for name in sys.modules if f"{name}.".startswith((f"{package}.", "dsmla_bench.reports.dashboard."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    file = tmp_path / "latents.safetensors"
    file.write_bytes(b"x")
    code, _, err = cli(*command.format(file=file).split())
    assert_one_sentence(code, err)
    assert package in err
    assert "install" in err
