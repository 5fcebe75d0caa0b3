"""Damaged and hostile options files: options are read, or one sentence names the file and the key."""

import tomlkit
import typer
from fuzzing import answered, damaged, damaged_bytes, fuzz, garbage
from hypothesis import given
from hypothesis import strategies as st

from dsmla_bench.cli import app
from dsmla_bench.cli.options_file import read_options

ROOT = typer.main.get_command(app)
OPTIONS = {
    "kernels": {"formats": ["bf16", "fp8_ds_mla"], "tokens": "1,128", "processes": 3, "no-progress": True},
    "error": {"sigmas": [0.5, 1.0], "seed": 7},
    "history": {"add": {"store": "runs/history", "commit": "c0ffee"}},
}
GARBAGE = garbage | st.sampled_from(
    [
        b"a = [" + b"[" * 100_000,
        b"[" + b"a." * 20_000 + b"b]\n",
        b"x = 1" + b"0" * 5000,
        b"x = 1e999\ny = nan\n",
        b"\xef\xbb\xbf[kernels]",
    ]
)


def read(tmp_path, text):
    file = tmp_path / "dsmla-bench.toml"
    file.write_bytes(text)
    with answered():
        read_options(file, ROOT, named=True)


def as_toml(options):
    """TOML of what it can hold: neither null nor numbers beyond 64 bits."""
    try:
        return tomlkit.dumps(options).encode("utf-8", "surrogatepass")
    except (ValueError, TypeError, AttributeError, tomlkit.exceptions.TOMLKitError):
        return b""


@fuzz(150)
@given(options=damaged(OPTIONS))
def test_options_of_wrong_values(tmp_path, options):
    read(tmp_path, as_toml(options))


@fuzz(100)
@given(text=damaged_bytes(as_toml(OPTIONS)) | GARBAGE)
def test_options_of_damaged_bytes(tmp_path, text):
    read(tmp_path, text)
