"""The provider ``vllm``: the cache operators of vLLM, installed or as a compiled library alone.

An installed vLLM is used as it is. Without one, ``--vllm-library PATH`` (or ``DSMLA_BENCH_VLLM_LIBRARY``) loads the
operators from a compiled file: ``vllm/_C_stable_libtorch.abi3.so`` of a wheel, or a fresh build of it. That file needs
torch, not vLLM's other dependencies; the one of vLLM 0.33.0 loads into torch 2.11.

Operators (``torch.ops._C_cache_ops``, schemas of vLLM 0.33):

    write   concat_and_cache_mla with kv_cache_dtype "auto", "fp8", "fp8_ds_mla" or "nvfp4_ds_mla"
    gather  cp_gather_cache (bf16), gather_and_maybe_dequant_cache (fp8),
            cp_gather_and_upconvert_fp8_kv_cache, cp_gather_and_upconvert_nvfp4_kv_cache

The fused kernels are not among them: they are Triton in vLLM's Python package (``vllm_fused``), which must be
importable whether or not a library is given.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.error_text import typed_line
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, Shape
from dsmla_bench.kernels.providers import vllm_fused
from dsmla_bench.kernels.providers.compiled import file_sha256, installed_version, load_library, scale_or_one

_CACHE_DTYPES = {"bf16": "auto", "fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla", "nvfp4_ds_mla": "nvfp4_ds_mla"}
_GATHERS = {
    "bf16": "cp_gather_cache",
    "fp8": "gather_and_maybe_dequant_cache",
    "fp8_ds_mla": "cp_gather_and_upconvert_fp8_kv_cache",
    "nvfp4_ds_mla": "cp_gather_and_upconvert_nvfp4_kv_cache",
}


class VllmProvider:
    """vLLM's compiled cache operators."""

    name = "vllm"
    summary = "vLLM's CUDA operators, installed or by --vllm-library"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        self.library = libraries.get("vllm")

    def why_not(
        self, operation: Operation, fmt: CacheFormat, arch: Architecture, shape: Shape | None = None
    ) -> str | None:
        """No vLLM, no such operator, another revision, or an architecture that it refuses."""
        if fmt.name not in _CACHE_DTYPES:
            return f"no vLLM operator is bound to {fmt.name} here"
        if operation.encodes and not fmt.default:
            return f"vLLM 0.33 does not write revision {fmt.revision} of {fmt.name}"
        if operation.name in vllm_fused.FUSED:
            return vllm_fused.why_not(operation, fmt, arch)
        if operation.name not in _BINDINGS:
            return f"no vLLM operator is bound to {operation.name} here"
        if fmt.name == "nvfp4_ds_mla" and arch.major != 10:
            return f"vLLM's nvfp4_ds_mla operators require sm_100 or sm_103; found {arch.label}"
        if fmt.name != "bf16" and arch < Architecture(8, 0):
            return f"vLLM's operators require sm_80 or later; found {arch.label}"
        return self._why_not_loaded

    @functools.cached_property
    def _why_not_loaded(self) -> str | None:
        """Why the operators are not there, or None. Asking loads them, once."""
        reason = load_library("--vllm-library", self.library) if self.library is not None else _import_operators()
        if reason is None and not hasattr(torch.ops._C_cache_ops, "concat_and_cache_mla"):
            return f"{self.library or 'the installed vLLM'} has no operator concat_and_cache_mla"
        return reason

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The operator call on these inputs. Raises ValueError for inputs that the operator has no argument for."""
        if operation.name in vllm_fused.FUSED:
            return vllm_fused.bind(operation, inputs, _CACHE_DTYPES[fmt.name])
        return _BINDINGS[operation.name](fmt, inputs)

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """None: the operators do not tell."""
        return None

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """None: not a Triton kernel."""
        return None

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """Of the compiled library; None for an installed vLLM, which its version names."""
        return file_sha256(self.library) if self.library is not None and operation.name in _BINDINGS else None

    def version(self) -> str | None:
        """The installed vLLM's version, or the library's file name."""
        return self.library.name if self.library is not None else installed_version("vllm")


def _import_operators() -> str | None:
    """Import the operators of an installed vLLM; in words why that cannot be."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed; install it, or give its compiled operators with --vllm-library"
    try:
        importlib.import_module("vllm._custom_ops")
    except Exception as error:  # beside another torch than its own, importing it may raise anything
        return f"the installed vLLM cannot be imported ({typed_line(error)})"
    return None


def _view(fmt: CacheFormat, cache: torch.Tensor) -> torch.Tensor:
    """The cache with the element type that vLLM expects of it."""
    return cache.view(torch.bfloat16) if fmt.name == "bf16" else cache


def _bind_write(fmt: CacheFormat, inputs: Any) -> Callable[[], None]:
    operator = torch.ops._C_cache_ops.concat_and_cache_mla
    cache = _view(fmt, inputs.cache)
    slot_mapping = inputs.slot_mapping.long()
    scale, dtype = scale_or_one(inputs.scale, cache.device), _CACHE_DTYPES[fmt.name]
    return lambda: operator(inputs.kv_c, inputs.k_pe, cache, slot_mapping, dtype, scale)


def _bind_gather(fmt: CacheFormat, inputs: Any) -> Callable[[], None]:
    """bf16's and fp8's operators take the end of the last request as one more start, fp8's every row's request too."""
    operator = getattr(torch.ops._C_cache_ops, _GATHERS[fmt.name])
    cache, workspace, table = _view(fmt, inputs.cache), inputs.workspace, inputs.block_table
    requests, tokens = len(table), len(workspace)
    starts = inputs.workspace_starts[:requests].int()
    seq_starts = None if inputs.seq_starts is None else inputs.seq_starts[:requests].int()
    if fmt.name in ("bf16", "fp8"):
        ends = torch.tensor([tokens], dtype=torch.int32, device=starts.device)
        starts = torch.cat([starts, ends])
    if fmt.name == "fp8":
        lengths = (starts[1:] - starts[:-1]).long()
        token_to_seq = torch.repeat_interleave(torch.arange(requests, device=starts.device), lengths).int()
        scale = scale_or_one(inputs.scale, cache.device)
        return lambda: operator(cache, workspace, table, starts, token_to_seq, tokens, "fp8", scale, seq_starts)
    if fmt.name != "nvfp4_ds_mla":
        return lambda: operator(cache, workspace, table, starts, requests, seq_starts)
    if seq_starts is not None:
        raise ValueError(f"vLLM's {_GATHERS[fmt.name]} takes no seq_starts; found {len(seq_starts)}")
    return lambda: operator(cache, workspace, table, starts, requests)


_BINDINGS: dict[str, Callable[[CacheFormat, Any], Callable[[], None]]] = {"write": _bind_write, "gather": _bind_gather}

PROVIDERS = (VllmProvider,)
