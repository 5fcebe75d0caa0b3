"""Files of real latents as a source: ``.npy``, ``.pt`` and ``.safetensors``, mapped and read block by block.

A file holds one floating-point array [T, kv_lora_rank + rope_dim], the latent first, or (``.pt``, ``.safetensors``)
two named ``kv_c`` [T, kv_lora_rank] and ``k_pe`` [T, rope_dim]. ``.pt`` files are read with ``weights_only``: nothing
in them is executed. ``.safetensors`` needs the package of that name, which the extra ``accuracy`` brings.
"""

from __future__ import annotations

import importlib
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsmla_bench.error_text import first_line
from dsmla_bench.evals.data import BLOCK_TOKENS
from dsmla_bench.kernels.formats import Geometry

SUFFIXES = (".npy", ".pt", ".safetensors")


@dataclass(frozen=True)
class FromFile:
    """Latents of a file; its arrays stay on disk until a block is read."""

    path: Path
    arrays: tuple[torch.Tensor, ...]
    tokens: int
    geometry: Geometry
    kind: str = "file"
    sigma: float | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def block(self, number: int) -> torch.Tensor:
        """Rows of one block, fp32 [<= BLOCK_TOKENS, width]."""
        rows = slice(number * BLOCK_TOKENS, min((number + 1) * BLOCK_TOKENS, self.tokens))
        return torch.cat([array[rows].float() for array in self.arrays], dim=-1)


def open_file(path: Path, tokens: int | None = None, geometry: Geometry = Geometry()) -> FromFile:
    """The latents of ``path``, its first ``tokens`` rows or all.

    Raises ValueError, in one sentence, for a file that cannot be read, holds something else, or has no finite value.
    """
    found = _load(path)
    arrays = _arrays(path, found, geometry)
    rows = len(arrays[0])
    if rows == 0:
        raise ValueError(f"{path}: holds no tokens (shape {list(arrays[0].shape)}); nothing to measure the error of")
    source = FromFile(path, arrays, min(rows, tokens or rows), geometry)
    blocks = range(math.ceil(source.tokens / BLOCK_TOKENS))
    if not any(bool(source.block(number).isfinite().any()) for number in blocks):
        raise ValueError(f"{path}: holds no finite value in {source.tokens} tokens; nothing to measure the error of")
    return source


def _load(path: Path) -> Any:
    """What the file holds: a tensor, or tensors by name."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: is no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file of latents")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: is empty; expected an array [T, kv_lora_rank + rope_dim]")
    try:
        return _READERS[path.suffix](path)
    except (ValueError, RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: cannot be read as {path.suffix} ({first_line(error)})") from error


def _read_npy(path: Path) -> torch.Tensor:
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise ValueError(f"dtype {array.dtype}, expected float16, float32 or float64")
    return torch.from_numpy(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


def _read_pt(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _read_safetensors(path: Path) -> Any:
    try:
        package = importlib.import_module("safetensors.torch")
    except ModuleNotFoundError as error:
        raise ValueError("safetensors is not installed; install it with pip install 'dsmla-bench[accuracy]'") from error
    try:
        return package.load_file(path)
    except Exception as error:  # the package's own exception derives from Exception alone
        raise ValueError(first_line(error)) from error


_READERS = {".npy": _read_npy, ".pt": _read_pt, ".safetensors": _read_safetensors}


def _arrays(path: Path, found: Any, geometry: Geometry) -> tuple[torch.Tensor, ...]:
    """The file's one or two arrays. Raises ValueError for other names, shapes or types."""
    width = geometry.kv_lora_rank + geometry.rope_dim
    if isinstance(found, Mapping) and len(found) == 1:
        found = next(iter(found.values()))
    if isinstance(found, Mapping) and {"kv_c", "k_pe"} <= set(found):
        wanted = [("kv_c", found["kv_c"], geometry.kv_lora_rank), ("k_pe", found["k_pe"], geometry.rope_dim)]
    elif isinstance(found, torch.Tensor):
        wanted = [("the array", found, width)]
    else:
        held = ", ".join(map(str, list(found)[:5])) if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"{path}: holds {held or 'nothing'}; expected one array [T, {width}], or kv_c and k_pe")
    for name, array, columns in wanted:
        if not isinstance(array, torch.Tensor) or array.dim() != 2 or array.shape[1] != columns:
            shape = list(array.shape) if isinstance(array, torch.Tensor) else type(array).__name__
            raise ValueError(f"{path}: {name} must be [T, {columns}] for {geometry}, found {shape}")
        if not array.dtype.is_floating_point:
            raise ValueError(f"{path}: {name} must hold floating-point values, found {array.dtype}")
    arrays = tuple(array for _, array, _ in wanted)
    if len({len(array) for array in arrays}) > 1:
        lengths = " and ".join(str(len(array)) for array in arrays)
        raise ValueError(f"{path}: kv_c and k_pe must have as many tokens each, found {lengths}")
    return arrays
