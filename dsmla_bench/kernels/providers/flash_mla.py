"""The provider ``flash_mla``: FlashMLA's sparse decode, of an installed vLLM, or as a compiled library alone.

``--flash-mla-library PATH`` (or ``DSMLA_BENCH_FLASH_MLA_LIBRARY``) loads the operators from a compiled file:
``vllm/_flashmla_C.abi3.so`` of a vLLM wheel, or a fresh build of it. That file needs torch and the CUDA driver, nothing
else of vLLM; the one of vLLM 0.33.0 loads into torch 2.11.

It serves (FlashMLA, csrc/api/sparse_decode.cpp) fp8_ds_mla on sm_90 and sm_100 and nvfp4_ds_mla on sm_100; 64 or 128
heads and a top-k of multiples of 64. Fewer heads and rows are padded where inputs are bound, with zeros and with -1.
Its sm_100 kernels keep of a scale the power of two, so that fp8_ds_mla with other scales is refused there.

The schedule of splits (``tile_scheduler_metadata`` and ``num_splits``) is made by the first call and reused, as serving
engines do from layer to layer. Outputs are written in place. The operator returns its own lse, and outputs of padded
heads come with the padding: both are copied into place, and the copies count.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation
from dsmla_bench.kernels.providers.compiled import file_sha256, first_line, installed_version

HEADS = (64, 128)
TOPK_MULTIPLE = 64
_OPERATOR = "sparse_decode_fwd"
_GENERATIONS = {"fp8_ds_mla": (9, 10), "nvfp4_ds_mla": (10,)}
"""Formats that it reads, and the major compute capabilities on which it does."""


class FlashMlaProvider:
    """FlashMLA's sparse decode."""

    name = "flash_mla"
    summary = "FlashMLA's sparse decode, of an installed vLLM or by --flash-mla-library"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        self.library = libraries.get("flash_mla")
        self._load_error: str | None = None
        self._loaded = False

    def why_not(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """Another operation or format, an architecture without such a kernel, or no FlashMLA."""
        if operation.name != "decode":
            return f"FlashMLA has no {operation.name}"
        if fmt.name not in _GENERATIONS:
            return f"FlashMLA's sparse decode reads {' and '.join(_GENERATIONS)} here, not {fmt.name}"
        if arch.major not in _GENERATIONS[fmt.name]:
            wanted = " and ".join(f"sm_{major}0" for major in _GENERATIONS[fmt.name])
            return f"FlashMLA decodes {fmt.name} on {wanted} only; found {arch.label}"
        if fmt.name == "fp8_ds_mla" and not fmt.default and arch.major == 10:
            return f"FlashMLA truncates scales to powers of two on {arch.label}, and those of {fmt.key} are others"
        return self._why_not_loaded()

    def _why_not_loaded(self) -> str | None:
        """Why the operator is not there, or None. Tries to load it once."""
        if not self._loaded and self._load_error is None:
            self._load_error = self._load()
            self._loaded = self._load_error is None
        return self._load_error

    def _load(self) -> str | None:
        if self.library is not None:
            if not self.library.is_file():
                return f"--flash-mla-library {self.library}: no such file"
            try:
                torch.ops.load_library(str(self.library))
            except OSError as error:
                return f"--flash-mla-library {self.library}: cannot be loaded ({first_line(error)})"
        elif importlib.util.find_spec("vllm") is not None:
            try:
                importlib.import_module("vllm._flashmla_C")
            except Exception as error:  # beside another torch than its own, importing it may raise anything
                return f"the installed vLLM's FlashMLA cannot be imported ({type(error).__name__}: {first_line(error)})"
        else:
            return "FlashMLA is not installed; install vLLM, or give the compiled operators with --flash-mla-library"
        if not hasattr(torch.ops._flashmla_C, _OPERATOR):
            return f"{self.library or 'the installed vLLM'} has no operator {_OPERATOR}"
        return None

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The operator call on these inputs. Raises ValueError for more heads than the operator takes."""
        return _bind(inputs)

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """None: reading converts, and the operators do not tell how."""
        return None

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """None: not a Triton kernel."""
        return None

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """Of the compiled library; None for an installed vLLM, which its version names."""
        return file_sha256(self.library) if self.library is not None else None

    def version(self) -> str | None:
        """The library's file name, or the version of the installed vLLM."""
        return self.library.name if self.library is not None else installed_version("vllm")


def _bind(inputs: Any) -> Callable[[], None]:
    operator = getattr(torch.ops._flashmla_C, _OPERATOR)
    heads, rank = inputs.q.shape[2], inputs.geometry.kv_lora_rank
    padded = next((count for count in HEADS if count >= heads), None)
    if padded is None:
        raise ValueError(f"FlashMLA decodes up to {HEADS[-1]} heads, found {heads}")
    q = _filled_up(inputs.q, 2, padded, 0.0).contiguous()
    sink = None if inputs.sink is None else _filled_up(inputs.sink, 0, padded, 0.0)
    topk = -(-inputs.indices.shape[2] // TOPK_MULTIPLE) * TOPK_MULTIPLE
    indices = _filled_up(inputs.indices, 2, topk, -1).contiguous()
    cache = inputs.cache.unsqueeze(2)
    out = inputs.out if padded == heads else q.new_empty(*q.shape[:3], rank)
    schedule: list[torch.Tensor | None] = [None, None]

    def run() -> None:
        _, lse, schedule[0], schedule[1] = operator(
            q, cache, indices, None, sink, *schedule, None, None, None, rank, inputs.softmax_scale, out
        )
        inputs.lse.copy_(lse[:, :heads].transpose(1, 2))
        if out is not inputs.out:
            inputs.out.copy_(out[:, :, :heads])

    return run


def _filled_up(tensor: torch.Tensor, dim: int, size: int, value: float) -> torch.Tensor:
    """``tensor`` with ``value`` behind it up to ``size`` entries of a dimension; itself where it has that many."""
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor
    shape = (*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :])
    return torch.cat([tensor, tensor.new_full(shape, value)], dim=dim)


PROVIDERS = (FlashMlaProvider,)
