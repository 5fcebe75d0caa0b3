"""A model's folder: found without the network unless it is allowed, safetensors only, known by a hash of its files."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from dsmla_bench.kernels.providers.compiled import file_sha256

WEIGHTS = "*.safetensors"
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "*.model", "vocab*", "merges.txt", "*.jinja", "chat_template*")
CODE = "*.py"


def find_model(model: str, *, online: bool, with_code: bool = False) -> Path:
    """The folder of a checkpoint: ``model`` itself, or where the hub's cache keeps a repository of that name.

    Raises ValueError when it is neither, or when it holds no safetensors: weights in other forms are programs.
    """
    folder = Path(model) if Path(model).is_dir() else _from_hub(model, online=online, with_code=with_code)
    if not list(folder.glob(WEIGHTS)):
        raise ValueError(
            f"{folder}: holds no {WEIGHTS}, the only form of weights that is loaded; convert the checkpoint"
        )
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder}: holds no config.json; give the folder of a transformers checkpoint")
    return folder


def find_tokenizer(tokenizer: str, *, online: bool) -> Path:
    """The folder of a tokenizer, as ``find_model`` finds one. Raises ValueError when there is none."""
    return Path(tokenizer) if Path(tokenizer).is_dir() else _from_hub(tokenizer, online=online, with_code=False)


def _from_hub(name: str, *, online: bool, with_code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", WEIGHTS, *TOKENIZER, *([CODE] if with_code else [])]
    try:
        return Path(snapshot_download(name, local_files_only=not online, allow_patterns=wanted))
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        found = (
            "cannot be downloaded"
            if online
            else "is not in the hub's cache, and the network is used only with --online"
        )
        raise ValueError(f"model {name!r} is no folder here and {found}; give the folder of a checkpoint") from error


@functools.cache
def weights_sha256(folder: Path) -> str:
    """SHA-256 over configuration, weights and code of a checkpoint: every byte, so about a second for each 1.5 GB."""
    return _files_sha256(folder, ("config.json", WEIGHTS, CODE))


@functools.cache
def tokenizer_sha256(folder: Path) -> str:
    """SHA-256 over the files of a tokenizer, its chat template included."""
    return _files_sha256(folder, TOKENIZER)


def _files_sha256(folder: Path, patterns: tuple[str, ...]) -> str:
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file_sha256(file)}\n".encode())
    return digest.hexdigest()
