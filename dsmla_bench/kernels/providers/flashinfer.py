"""The provider ``flashinfer``: MLA append and sparse MLA decode of an installed ``flashinfer-python``.

Functions (of FlashInfer 0.7):

    write   append_paged_mla_kv_cache, which copies: it writes bf16 and quantizes nothing
    decode  bf16 and fp8 on sm_90, bf16 on sm_80 and sm_120: mla.BatchMLAPagedAttentionWrapper (fa3, fa2), whose pages
            of one token make the chosen slots its page table
            bf16 on sm_100: mla.trtllm_batch_decode_with_kv_cache_mla (trtllm-gen)
            fp8_ds_mla on sm_120: the same function (sparse)

Every query token is a request of its own, as serving engines call them. What a call needs beside its inputs is made
where these are bound: int32 positions and slots, the latter packed before -1 as the kernels demand, the host's plan of
the wrapper, a workspace. Outputs are written in place.

A kernel is compiled when it is first called, unless ``flashinfer-jit-cache`` is installed, and takes minutes;
trtllm-gen's come from ``flashinfer-cubin`` or are downloaded.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.error_text import typed_line
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat, Geometry
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.kernels.operations import Operation, Shape
from dsmla_bench.kernels.providers.compiled import installed_version

GEOMETRY = Geometry(512, 64)
WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation starts from."""
_BACKENDS = {
    "bf16": {8: "fa2", 9: "fa3", 10: "trtllm-gen", 12: "fa2"},
    "fp8": {9: "fa3"},
    "fp8_ds_mla": {12: "sparse"},
}
"""FlashInfer's backend that decodes a format with bf16 queries, by major compute capability."""
_SCALES = {"pow2": "pow2_fp32", "amax448": "arbitrary_fp32"}
"""``kv_scale_format`` by revision of fp8_ds_mla."""
_QK_NOPE_HEAD_DIM = 128
"""Of DeepSeek's models: an argument that the kernels for absorbed queries ask for and do not use."""
_HEADS = 128
"""The most heads that the backends sparse and trtllm-gen decode."""


class FlashInferProvider:
    """FlashInfer's MLA append and sparse MLA decode."""

    name = "flashinfer"
    summary = "FlashInfer's MLA append and sparse decode, installed"

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        self._workspaces: dict[torch.device, torch.Tensor] = {}

    def why_not(
        self, operation: Operation, fmt: CacheFormat, arch: Architecture, shape: Shape | None = None
    ) -> str | None:
        """Another operation, format, architecture or shape than its functions are for, or no FlashInfer."""
        if operation.name == "write":
            reason = _why_not_append(fmt)
        elif operation.name == "decode":
            reason = _why_not_decode(fmt, arch, shape)
        else:
            return f"no FlashInfer function is bound to {operation.name} here"
        if reason is None and shape is not None and shape.geometry != GEOMETRY:
            found = f"{shape.geometry.kv_lora_rank} + {shape.geometry.rope_dim}"
            return f"FlashInfer's MLA kernels are bound for 512 + 64 here, found {found}"
        return reason or _why_not_loaded()

    def bind(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> Callable[[], None]:
        """The call on these inputs. Raises ValueError for a negative slot, a sink, and a query token without rows."""
        if operation.name == "write":
            return _append(inputs)
        if inputs.sink is not None:
            raise ValueError("FlashInfer's decode is bound without a sink here, found one")
        decode = _paged_decode if _BACKENDS[fmt.name][arch.major].startswith("fa") else _functional_decode
        return decode(_BACKENDS[fmt.name][arch.major], fmt, inputs, self._workspace(inputs.q.device))

    def _workspace(self, device: torch.device) -> torch.Tensor:
        """The scratch memory of a device, shared by all calls as layers share it; zero where kernels keep counters."""
        if device not in self._workspaces:
            self._workspaces[device] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._workspaces[device]

    def conversion(self, operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
        """None: writing converts nothing, and how reading converts is not told."""
        return None

    def plan(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: int) -> Launch | None:
        """None: not a Triton kernel."""
        return None

    def binary_sha256(self, operation: Operation, fmt: CacheFormat, inputs: Any, arch: Architecture) -> str | None:
        """None: the version names it."""
        return None

    def version(self) -> str | None:
        """The installed FlashInfer's version."""
        return installed_version("flashinfer-python")


def _why_not_append(fmt: CacheFormat) -> str | None:
    if fmt.name != "bf16":
        return "FlashInfer's MLA append copies bf16 values and quantizes none, so it writes bf16 only"
    return None


def _why_not_decode(fmt: CacheFormat, arch: Architecture, shape: Shape | None) -> str | None:
    if fmt.name not in _BACKENDS:
        return f"FlashInfer's sparse MLA decode reads {', '.join(_BACKENDS)} here, not {fmt.name}"
    backend = _BACKENDS[fmt.name].get(arch.major)
    if backend is None:
        wanted = ", ".join(f"sm_{major}0" for major in _BACKENDS[fmt.name])
        return f"FlashInfer decodes {fmt.name} with bf16 queries on {wanted} only; found {arch.label}"
    return None if shape is None or shape.heads is None else _why_not_backend(backend, shape, shape.heads)


def _why_not_backend(backend: str, shape: Shape, heads: int) -> str | None:
    """What a backend asks of head count, block size and top-k."""
    if backend == "sparse" and heads > _HEADS:
        return f"FlashInfer's sparse backend decodes up to {_HEADS} heads, found {heads}"
    if backend != "trtllm-gen":
        return None
    if heads > 64 and heads != _HEADS:
        return f"FlashInfer's trtllm-gen backend decodes up to 64 or 128 heads, found {heads}"
    if shape.block_size not in (32, 64):
        return f"FlashInfer's trtllm-gen backend reads pages of 32 or 64 tokens, found {shape.block_size}"
    if shape.topk is not None and shape.topk % 4:
        return f"FlashInfer's trtllm-gen backend takes a top-k of multiples of 4, found {shape.topk}"
    return None


def _why_not_loaded() -> str | None:
    """Why FlashInfer cannot be called, or None."""
    if importlib.util.find_spec("flashinfer") is None:
        return "FlashInfer is not installed; install flashinfer-python"
    try:
        mla = importlib.import_module("flashinfer.mla")
    except Exception as error:  # beside another torch than its own, importing it may raise anything
        return f"the installed FlashInfer cannot be imported ({typed_line(error)})"
    if not hasattr(mla, "MLAPlanMetadata"):
        found = installed_version("flashinfer-python")
        return f"FlashInfer {found} lacks mla.MLAPlanMetadata; what is bound here is the interface of FlashInfer 0.7"
    if importlib.util.find_spec("flashinfer_jit_cache") is None and not _has_nvcc():
        return "FlashInfer compiles its kernels and finds no nvcc; install flashinfer-jit-cache or set CUDA_HOME"
    return None


def _has_nvcc() -> bool:
    """Whether there is a compiler where FlashInfer looks for one."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [f"{home}/bin" for home in homes if home]
    return shutil.which("nvcc") is not None or shutil.which("nvcc", path=os.pathsep.join(folders)) is not None


def _append(inputs: Any) -> Callable[[], None]:
    """The append as one request whose pages are those of the cache, so that a token's position is its slot."""
    slots = inputs.slot_mapping
    if bool((slots < 0).any()):
        raise ValueError(f"FlashInfer's MLA append writes every token, found {int((slots < 0).sum())} negative slots")
    cache, rank = inputs.cache.view(torch.bfloat16), inputs.geometry.kv_lora_rank
    pages, block_size, _ = cache.shape
    int32 = functools.partial(torch.tensor, dtype=torch.int32, device=cache.device)
    return functools.partial(
        importlib.import_module("flashinfer").append_paged_mla_kv_cache,
        append_ckv=inputs.kv_c[: len(slots)],
        append_kpe=inputs.k_pe[: len(slots)],
        batch_indices=torch.zeros_like(slots, dtype=torch.int32),
        positions=slots.int(),
        ckv_cache=cache[..., :rank],
        kpe_cache=cache[..., rank:],
        kv_indices=torch.arange(pages, dtype=torch.int32, device=cache.device),
        kv_indptr=int32([0, pages]),
        kv_last_page_len=int32([block_size]),
    )


def _paged_decode(backend: str, fmt: CacheFormat, inputs: Any, workspace: torch.Tensor) -> Callable[[], None]:
    """A planned run of the wrapper over pages of one token."""
    mla = importlib.import_module("flashinfer.mla")
    slots, counts = _packed(inputs)
    tokens, heads = len(slots), inputs.q.shape[2]
    dtype = torch.bfloat16 if fmt.name == "bf16" else torch.float8_e4m3fn
    wrapper = mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    wrapper.plan(
        metadata=mla.MLAPlanMetadata.csr(
            qo_indptr=torch.arange(tokens + 1, dtype=torch.int32, device=slots.device),
            kv_indptr=torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int(),
            kv_indices=slots[slots >= 0],
            kv_len_arr=counts,
        ),
        num_heads=heads,
        head_dim_ckv=inputs.geometry.kv_lora_rank,
        head_dim_kpe=inputs.geometry.rope_dim,
        page_size=1,
        causal=False,
        sm_scale=inputs.softmax_scale,
        q_data_type=torch.bfloat16,
        kv_data_type=dtype,
        lse_mode="basee",
    )
    scale = 1.0 if inputs.scale is None else float(inputs.scale)
    cache = inputs.cache.view(dtype)
    return functools.partial(
        wrapper.run,
        query=inputs.q.flatten(0, 1),
        kv_cache=cache.view(-1, 1, cache.shape[2]),
        out=inputs.out.view(tokens, heads, -1),
        lse=inputs.lse.view(tokens, heads),
        return_lse=True,
        return_lse_base_on_e=True,
        **({} if fmt.name == "bf16" else {"ckv_scale": scale, "kpe_scale": scale}),
    )


def _functional_decode(backend: str, fmt: CacheFormat, inputs: Any, workspace: torch.Tensor) -> Callable[[], None]:
    """The call of the function that needs no plan."""
    slots, counts = _packed(inputs)
    tokens, topk = slots.shape
    heads, geometry = inputs.q.shape[2], inputs.geometry
    return functools.partial(
        importlib.import_module("flashinfer.mla").trtllm_batch_decode_with_kv_cache_mla,
        query=inputs.q.flatten(0, 1).unsqueeze(1),
        kv_cache=inputs.cache.view(torch.bfloat16) if fmt.name == "bf16" else inputs.cache,
        workspace_buffer=workspace,
        qk_nope_head_dim=_QK_NOPE_HEAD_DIM,
        kv_lora_rank=geometry.kv_lora_rank,
        qk_rope_head_dim=geometry.rope_dim,
        block_tables=slots.unsqueeze(1),
        seq_lens=counts,
        max_seq_len=topk,
        sparse_mla_top_k=topk,
        out=inputs.out.view(tokens, 1, heads, -1),
        bmm1_scale=inputs.softmax_scale,
        bmm2_scale=1.0,
        backend=backend,
        lse=inputs.lse.view(tokens, 1, heads),
        return_lse=True,
        return_lse_base="basee",
        kv_scale_format=_SCALES.get(fmt.revision, "auto"),
    )


def _packed(inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots int32 [B · s_q, topk] of each query token with -1 behind them, and their number int32 [B · s_q]."""
    slots = inputs.indices.flatten(0, 1)
    taken = (slots >= 0) & (slots < inputs.cache.shape[0] * inputs.cache.shape[1])
    counts = taken.sum(dim=1)
    if bool((counts == 0).any()):
        raise ValueError(f"FlashInfer needs a row for every query token, found {int((counts == 0).sum())} without any")
    order = (~taken).to(torch.uint8).argsort(dim=1, stable=True)
    return torch.where(taken, slots, -1).gather(1, order), counts.int()


PROVIDERS = (FlashInferProvider,)
