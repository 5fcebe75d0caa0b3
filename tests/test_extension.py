"""Adding a format or a provider touches one file, and that file may lie in someone else's package."""

import json
import re

import pytest
from plugins import install
from processes import ABSENT, run_command

from dsmla_bench.kernels.formats import all_formats
from dsmla_bench.kernels.providers import load_providers


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with three packages: a format, two formats with faults, and a provider."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, "toy", {"dsmla_bench.formats": "toy_format:FORMATS"})
    install(folder, "toy_faults", {"dsmla_bench.formats": "toy_format:BAD_FORMATS"})
    install(folder, "toy_kernels", {"dsmla_bench.providers": "toy_provider:PROVIDERS"})
    return folder


@pytest.fixture(scope="module")
def sweep(packages):
    """Exit code and rows by (format, operation, provider) of a sweep over the toys."""
    axes = ["--formats", "toy,toy_wrong,toy_broken", "--providers", "triton,toy_kernels", "--tokens", "5"]
    options = ["--arch", ABSENT.name, "--page-orders", "shuffled", "--out", packages / "runs", "--json"]
    done = run_command("kernels", *axes, *options, path=[packages])
    rows = json.loads(done.stdout)["rows"]
    return done.returncode, {(row["format"], row["operation"], row["provider"]): row for row in rows}


def test_a_format_of_another_package_is_listed(packages):
    done = run_command("formats", path=[packages])
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "toy v1 (default) 1152 73728 1 sm90+ 64 bf16 RoPE | 512 bf16 NoPE" in lines
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("operation", "compared"), [("write", 64 * 1152), ("gather", 5 * 1152)])
def test_it_is_checked_to_the_byte_and_cross_compiled(sweep, operation, compared):
    row = sweep[1]["toy", operation, "triton"]
    assert (row["status"], row["revision"]) == ("compiled", "v1")
    assert row["conversion"] == ("none" if operation == "write" else None), "only writing converts"
    assert (row["bytes_differing"], row["bytes_compared"]) == (0, compared)
    assert row["registers"] > 0
    assert row["spilled_bytes"] == 0
    assert row["bytes_written"] == 5 * 1152


def test_a_wrong_kernel_is_incorrect_says_how_wrong_and_makes_the_exit_code_1(sweep):
    code, rows = sweep
    row = rows["toy_wrong", "write", "triton"]
    assert row["status"] == "incorrect"
    assert 1000 < row["bytes_differing"] < row["bytes_compared"]
    share = f"{row['bytes_differing']} of {row['bytes_compared']} bytes differ"
    assert row["reason"].startswith(f"{share} (")
    assert "; first: cache[" in row["reason"]
    assert row["us"] is None
    assert rows["toy_wrong", "gather", "triton"]["status"] == "compiled"
    assert code == 1


def test_a_kernel_that_does_not_compile_costs_its_row_and_one_sentence(sweep):
    row = sweep[1]["toy_broken", "write", "triton"]
    assert row["status"] == "compile_error"
    assert "cannot compile" in row["reason"]
    assert ABSENT.label in row["reason"]
    assert "\n" not in row["reason"]
    assert sweep[1]["toy_broken", "gather", "triton"]["status"] == "compiled"


def test_a_provider_of_another_package_has_rows_and_reasons(sweep):
    write, gather = (sweep[1]["toy", operation, "toy_kernels"] for operation in ("write", "gather"))
    assert (write["status"], gather["status"]) == ("skipped", "skipped")
    assert write["reason"].startswith("toy_kernels ")
    assert write["reason"].endswith(f"no {ABSENT.label} device here")
    assert gather["reason"] == "toy_kernels has no gather"


BROKEN = "raise RuntimeError('built for another torch\\nin two lines')"
MEND = "mend or uninstall the package that has it"


def found(kind):
    """Looks for formats or providers; the registry of formats is cached, and this looks anew and leaves it alone."""
    return all_formats.__wrapped__() if kind == "formats" else load_providers({})


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("formats", "toy_format:FORMATS", "two formats are called toy:v1; a format's name must be unique"),
        (
            "providers",
            "toy_provider:PROVIDERS",
            "two providers are called toy_kernels; a provider's name must be unique",
        ),
    ],
)
def test_a_name_that_two_packages_have_is_refused(tmp_path, monkeypatch, kind, value, message):
    for package in ("first", "second"):
        install(tmp_path, package, {f"dsmla_bench.{kind}": value})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        found(kind)


@pytest.mark.parametrize(
    ("kind", "value", "what"),
    [
        ("formats", "toy_format:TOY", "must be a tuple, found CacheFormat"),
        ("formats", "toy_provider:PROVIDERS", "must hold CacheFormat values only, found type"),
        ("formats", "toy_broken:FORMATS", f"cannot be loaded (RuntimeError: built for another torch); {MEND}"),
        ("providers", "toy_provider:ToyProvider", "must be a tuple, found type"),
        (
            "providers",
            "toy_provider:NONE",
            f"cannot be loaded (AttributeError: module 'toy_provider' has no attribute 'NONE'); {MEND}",
        ),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, monkeypatch, kind, value, what):
    install(tmp_path, "package", {f"dsmla_bench.{kind}": value})
    (tmp_path / "toy_broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    message = f"entry point {value!r} of dsmla_bench.{kind} {what}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        found(kind)
