"""The provider ``flash_mla``: FlashMLA's sparse decode, as a compiled library, a package, or part of an installed vLLM.

The first that is there is taken:

* ``--flash-mla-library PATH`` (or ``DSMLA_BENCH_FLASH_MLA_LIBRARY``) loads the operators from a compiled file:
  ``vllm/_flashmla_C.abi3.so`` of a vLLM wheel, or a fresh build of it. That file needs torch and the CUDA driver,
  nothing else of vLLM; the one of vLLM 0.33.0 loads into torch 2.11.
* the package ``flash_mla``: FlashMLA's own, whose releases before 2026-09-30 read fp8_ds_mla, or ``sgl-flash-mla``,
  which keeps the kernels that were dropped then (``use_legacy``).
* the operators of an installed vLLM.

It serves (FlashMLA, csrc/api/sparse_decode.cpp) fp8_ds_mla on sm_90 and sm_100 and, in vLLM's copy, nvfp4_ds_mla on
sm_100; 64 or 128 heads and a top-k of multiples of 64. Fewer heads and rows are padded where inputs are bound, with
zeros and with -1. Its sm_100 kernels keep of a scale the power of two, so that fp8_ds_mla with other scales is refused
there.

The schedule of splits (``tile_scheduler_metadata`` and ``num_splits``) is made by the first call and reused, as serving
engines do from layer to layer. vLLM's operator writes outputs in place. The package returns outputs of its own, both
return an lse of their own, and outputs of padded heads come with the padding: all these are copied into place, and the
copies count.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.error_text import typed_line
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, Shape
from dsmla_bench.kernels.providers.compiled import file_sha256, installed_version, load_library

HEADS = (64, 128)
TOPK_MULTIPLE = 64
_OPERATOR = "sparse_decode_fwd"
_PACKAGE = "flash_mla"
_GENERATIONS = {"fp8_ds_mla": (9, 10), "nvfp4_ds_mla": (10,)}
"""Formats that it reads, and the major compute capabilities on which it does."""
_PACKAGE_FORMATS = ("fp8_ds_mla",)
"""Of these, the ones that the package reads: nvfp4_ds_mla is vLLM's addition."""


class FlashMlaProvider:
    """FlashMLA's sparse decode."""

    name = "flash_mla"
    summary = "FlashMLA's sparse decode, installed, of an installed vLLM, or by --flash-mla-library"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        self.library = libraries.get("flash_mla")
        self._package: Any = None

    def why_not(
        self, operation: Operation, fmt: CacheFormat, arch: Architecture, shape: Shape | None = None
    ) -> str | None:
        """Another operation or format, an architecture without such a kernel, too many heads, or no FlashMLA."""
        if operation.name != "decode":
            return f"FlashMLA has no {operation.name}"
        if fmt.name not in _GENERATIONS:
            return f"FlashMLA's sparse decode reads {' and '.join(_GENERATIONS)} here, not {fmt.name}"
        if arch.major not in _GENERATIONS[fmt.name]:
            wanted = " and ".join(f"sm_{major}0" for major in _GENERATIONS[fmt.name])
            return f"FlashMLA decodes {fmt.name} on {wanted} only; found {arch.label}"
        if fmt.name == "fp8_ds_mla" and not fmt.default and arch.major == 10:
            return f"FlashMLA truncates scales to powers of two on {arch.label}, and those of {fmt.key} are others"
        if shape is not None and shape.heads is not None and shape.heads > HEADS[-1]:
            return _too_many(shape.heads)
        reason = self._why_not_loaded
        if reason is None and self._package is not None and fmt.name not in _PACKAGE_FORMATS:
            return f"the installed flash_mla does not read {fmt.name}; vLLM's copy of FlashMLA does"
        return reason

    @functools.cached_property
    def _why_not_loaded(self) -> str | None:
        """Why FlashMLA is not there, or None. Asking loads it, once."""
        if self.library is None and importlib.util.find_spec(_PACKAGE) is not None:
            return self._load_package()
        reason = load_library("--flash-mla-library", self.library) if self.library is not None else _import_operator()
        if reason is None and not hasattr(torch.ops._flashmla_C, _OPERATOR):
            return f"{self.library or 'the installed vLLM'} has no operator {_OPERATOR}"
        return reason

    def _load_package(self) -> str | None:
        """Import the package; why it cannot be used, or None."""
        try:
            package = importlib.import_module(_PACKAGE)
            parameters = inspect.signature(package.flash_mla_with_kvcache).parameters
        except Exception as error:  # beside another torch than its own, importing it may raise anything
            return f"the installed flash_mla cannot be used ({typed_line(error)})"
        if "attn_sink" not in parameters:
            return "the installed flash_mla has another interface of its sparse decode; install a later one"
        if "enable_batch_invariant" in parameters and "use_legacy" not in parameters:
            return (
                "the installed flash_mla, of 2026-09-30 or later, reads DeepSeek-V4.1's caches only; "
                "install an earlier one or sgl-flash-mla"
            )
        self._package = package
        return None

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The call on these inputs. Raises ValueError for more heads than FlashMLA takes."""
        arguments = _arguments(inputs)
        decode = _operator(arguments) if self._package is None else _function(self._package, arguments)
        decode()  # the first call also plans how the work is split; engines keep that plan, so it belongs to no time
        heads = inputs.q.shape[2]

        def run() -> None:
            out, lse = decode()
            inputs.lse.copy_(lse[:, :heads].transpose(1, 2))
            if out is not inputs.out:
                inputs.out.copy_(out[:, :, :heads])

        return run

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """None: reading converts, and the operators do not tell how."""
        return None

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """None: not a Triton kernel."""
        return None

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """Of the compiled library; None for what is installed, which its version names."""
        return file_sha256(self.library) if self.library is not None else None

    def version(self) -> str | None:
        """The library's file name, or the version of the package or vLLM that is used."""
        if self.library is not None:
            return self.library.name
        if importlib.util.find_spec(_PACKAGE) is not None:
            return installed_version("flash_mla") or installed_version("sgl-flash-mla")
        return installed_version("vllm")


def _import_operator() -> str | None:
    """Import the operator of an installed vLLM; in words why that cannot be."""
    if importlib.util.find_spec("vllm") is None:
        return (
            "FlashMLA is not installed; install flash_mla or vLLM, or give the compiled operators with "
            "--flash-mla-library"
        )
    try:
        importlib.import_module("vllm._flashmla_C")
    except Exception as error:  # beside another torch than its own, importing it may raise anything
        return f"the installed vLLM's FlashMLA cannot be imported ({typed_line(error)})"
    return None


@dataclass(frozen=True)
class _Arguments:
    """What FlashMLA is called with: heads padded to one of HEADS, indices to a multiple of TOPK_MULTIPLE.

    q        bf16 [B, s_q, heads, 576]
    cache    uint8 [blocks, block_size, 1, row_bytes]
    indices  int32 [B, s_q, topk]
    sink     fp32 [heads] or None
    out      bf16 [B, s_q, heads, rank], the inputs' own where no head is padded
    """

    q: torch.Tensor
    cache: torch.Tensor
    indices: torch.Tensor
    sink: torch.Tensor | None
    out: torch.Tensor
    rank: int
    softmax_scale: float


Decode = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""A call of FlashMLA: out [B, s_q, heads, rank] and lse fp32 [B, heads, s_q]."""


def _arguments(inputs: Any) -> _Arguments:
    heads, rank = inputs.q.shape[2], inputs.geometry.kv_lora_rank
    padded = next((count for count in HEADS if count >= heads), None)
    if padded is None:
        raise ValueError(_too_many(heads))
    q = _filled_up(inputs.q, 2, padded, 0.0).contiguous()
    topk = -(-inputs.indices.shape[2] // TOPK_MULTIPLE) * TOPK_MULTIPLE
    return _Arguments(
        q=q,
        cache=inputs.cache.unsqueeze(2),
        indices=_filled_up(inputs.indices, 2, topk, -1).contiguous(),
        sink=None if inputs.sink is None else _filled_up(inputs.sink, 0, padded, 0.0),
        out=inputs.out if padded == heads else q.new_empty(*q.shape[:3], rank),
        rank=rank,
        softmax_scale=inputs.softmax_scale,
    )


def _operator(given: _Arguments) -> Decode:
    """The call of vLLM's operator, which writes ``out``."""
    operator = getattr(torch.ops._flashmla_C, _OPERATOR)
    tensors = (given.q, given.cache, given.indices, None, given.sink)
    schedule: list[torch.Tensor | None] = [None, None]

    def decode() -> tuple[torch.Tensor, torch.Tensor]:
        _, lse, schedule[0], schedule[1] = operator(
            *tensors, *schedule, None, None, None, given.rank, given.softmax_scale, given.out
        )
        return given.out, lse

    return decode


def _function(package: Any, given: _Arguments) -> Decode:
    """The call of the package's function, which has no argument for ``out``."""
    function = package.flash_mla_with_kvcache
    legacy = {"use_legacy": True} if "use_legacy" in inspect.signature(function).parameters else {}
    schedule, _ = package.get_mla_metadata()
    return functools.partial(
        function,
        q=given.q,
        k_cache=given.cache.view(torch.float8_e4m3fn),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=given.rank,
        tile_scheduler_metadata=schedule,
        softmax_scale=given.softmax_scale,
        is_fp8_kvcache=True,
        indices=given.indices,
        attn_sink=given.sink,
        **legacy,
    )


def _too_many(heads: int) -> str:
    return f"FlashMLA decodes up to {HEADS[-1]} heads, found {heads}"


def _filled_up(tensor: torch.Tensor, dim: int, size: int, value: float) -> torch.Tensor:
    """``tensor`` with ``value`` behind it up to ``size`` entries of a dimension; itself where it has that many."""
    missing = size - tensor.shape[dim]
    if not missing:
        return tensor
    shape = (*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :])
    return torch.cat([tensor, tensor.new_full(shape, value)], dim=dim)


PROVIDERS = (FlashMlaProvider,)
