"""vLLM's fused kernels of DeepSeek-V3.2: Triton in its Python package, which the provider ``vllm`` calls.

``vllm.models.deepseek_v32.common.kernels`` of vLLM 0.33 has ``fused_norm_rope`` and ``fused_q``. The first is called as
it is. The second makes its outputs anew at every call, so its kernel is launched here in its place, with the same
arguments and the same warps, into the outputs of the inputs; from sm_100 on it hands over to a kernel in CuTe instead,
and is not bound. Both start early where the device can (programmatic dependent launch), as in production.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import triton

from dsmla_bench.error_text import typed_line
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.operations import Operation
from dsmla_bench.kernels.operations.fused_norm_rope import FusedNormRopeInputs
from dsmla_bench.kernels.operations.fused_q import FusedQInputs
from dsmla_bench.kernels.providers.compiled import scale_or_one

MODULE = "vllm.models.deepseek_v32.common.kernels"


def why_not(operation: Operation, fmt: CacheFormat, arch: Architecture) -> str | None:
    """Why vLLM cannot serve this case on this architecture, or None."""
    if not arch.has_e4m3:
        return f"vLLM's {operation.name} needs a conversion to e4m3 that Triton lacks on {arch.label}"
    if operation.name == "fused_q" and arch.major >= 10:
        return f"vLLM's fused_q is a CuTe kernel on {arch.label}, which is not bound here"
    if fmt.name == "nvfp4_ds_mla" and arch.major != 10:
        return f"vLLM's fused_norm_rope writes nvfp4_ds_mla on sm_100 and sm_103; found {arch.label}"
    module = _module()
    if isinstance(module, str):
        return module
    if operation.name == "fused_norm_rope" and module.mqa_logits_use_mx_scales():
        return f"vLLM's fused_norm_rope stores ue8m0 scales in the indexer's cache on {arch.label}, another layout"
    return None


@functools.cache
def _module() -> Any:
    """vLLM's module of fused kernels, or in words why there is none."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed; its fused kernels are part of its Python package, not of --vllm-library"
    try:
        return importlib.import_module(MODULE)
    except Exception as error:  # beside another torch or Triton than its own, importing it may raise anything
        return f"{MODULE} cannot be imported ({typed_line(error)})"


def bind(operation: Operation, inputs: Any, cache_dtype: str) -> Callable[[], None]:
    """The call on these inputs; ``cache_dtype`` is vLLM's name of the format."""
    return _BINDINGS[operation.name](_module(), inputs, cache_dtype)


def _bind_norm_rope(module: Any, inputs: FusedNormRopeInputs, cache_dtype: str) -> Callable[[], None]:
    cache = inputs.cache.view(torch.bfloat16) if cache_dtype == "auto" else inputs.cache
    return functools.partial(
        module.fused_norm_rope,
        positions=inputs.positions.long(),
        q_c=inputs.q_c,
        q_rms_norm_w=inputs.q_weight,
        q_rms_eps=inputs.rms_eps,
        kv_c=inputs.kv_c,
        kv_rms_norm_w=inputs.kv_weight,
        kv_rms_eps=inputs.rms_eps,
        k_pe=inputs.k_pe,
        k_rope_cos_sin_cache=inputs.cos_sin,
        index_k=inputs.index_k,
        index_k_layer_norm_w=inputs.index_weight,
        index_k_layer_norm_bias=inputs.index_bias,
        index_k_layer_norm_eps=inputs.index_eps,
        index_k_rope_cos_sin_cache=inputs.index_cos_sin,
        topk_indices_buffer=_topk_buffer(inputs),
        slot_mapping=inputs.slot_mapping.long(),
        indexer_slot_mapping=inputs.index_slot_mapping,
        indexer_k_cache=inputs.index_cache,
        mla_kv_cache=cache,
        mla_kv_cache_dtype=cache_dtype,
        mla_k_scale=scale_or_one(inputs.scale, cache.device),
        has_indexer=inputs.index_k is not None,
        index_rope_interleave=inputs.index_interleaved,
        q_c_out=inputs.q_c_out,
        kv_c_out=inputs.kv_c_out,
        k_pe_out=inputs.k_pe_out,
    )


def _topk_buffer(inputs: FusedNormRopeInputs) -> torch.Tensor:
    """The buffer of the inputs; without an indexer one that is asked for but left alone."""
    if inputs.topk_indices is not None:
        return inputs.topk_indices
    return torch.empty(1, 1, dtype=torch.int32, device=inputs.q_c.device)


def _bind_q(module: Any, inputs: FusedQInputs, cache_dtype: str) -> Callable[[], None]:
    tokens, heads = len(inputs.positions), inputs.q_pe.shape[1]
    one = torch.ones(1, device=inputs.q_pe.device)
    indexed = inputs.index_q is not None
    index_q = inputs.index_q if inputs.index_q is not None else one.view(1, 1, 1)
    index_q_out = inputs.index_q_out if inputs.index_q_out is not None else one.view(1, 1, 1)
    weights = inputs.index_weights if inputs.index_weights is not None else one.view(1, 1)
    weights_out = inputs.index_weights_out if inputs.index_weights_out is not None else one.view(1, 1)
    table = inputs.index_cos_sin if inputs.index_cos_sin is not None else inputs.cos_sin
    ql_nope = inputs.ql_nope if inputs.ql_nope is not None else inputs.q_pe
    early = module.current_platform.is_arch_support_pdl()
    launch = module._fused_q_kernel[(tokens, 3, max((heads + 1) // 2, index_q.shape[1]))]
    return functools.partial(
        launch,
        pos_ptr=inputs.positions.long(),
        q_pe_ptr=inputs.q_pe,
        q_pe_stride0=inputs.q_pe.stride(0),
        q_pe_stride1=inputs.q_pe.stride(1),
        NUM_Q_HEADS=heads,
        q_pe_cos_sin_ptr=inputs.cos_sin,
        q_pe_cos_sin_stride=inputs.cos_sin.stride(0),
        Q_PE_HALF_ROT_DIM=inputs.cos_sin.shape[-1] // 2,
        index_q_ptr=index_q,
        index_q_stride0=index_q.stride(0),
        index_q_stride1=index_q.stride(1),
        NUM_INDEX_Q_HEADS=index_q.shape[1],
        index_q_cos_sin_ptr=table,
        index_q_cos_sin_stride=table.stride(0),
        INDEX_Q_HALF_ROT_DIM=table.shape[-1] // 2,
        index_q_fp8_ptr=index_q_out,
        index_q_fp8_stride0=index_q_out.stride(0),
        index_q_fp8_stride1=index_q_out.stride(1),
        INDEX_Q_HEAD_DIM=index_q.shape[2],
        ql_nope_ptr=ql_nope,
        ql_nope_stride0=ql_nope.stride(0),
        ql_nope_stride1=ql_nope.stride(1),
        mqa_q_fp8_ptr=inputs.query,
        mqa_q_fp8_stride0=inputs.query.stride(0),
        mqa_q_fp8_stride1=inputs.query.stride(1),
        q_scale_ptr=inputs.q_scale if inputs.q_scale is not None else one,
        QL_NOPE_DIM=ql_nope.shape[2],
        QL_NOPE_BLOCK=triton.next_power_of_2(ql_nope.shape[2]),
        q_pe_out_ptr=inputs.query,
        q_pe_out_stride0=inputs.query.stride(0),
        q_pe_out_stride1=inputs.query.stride(1),
        index_weights_ptr=weights,
        index_weights_stride=weights.stride(0),
        index_weights_softmax_scale=inputs.index_softmax_scale,
        index_weights_head_scale=inputs.index_head_scale,
        index_weights_out_ptr=weights_out,
        index_weights_out_stride=weights_out.stride(0),
        HAS_INDEXER=indexed,
        INDEX_ROPE_INTERLEAVE=inputs.index_interleaved,
        QUANTIZE_MQA=inputs.quantized,
        FP8_MAX=module._FP8_MAX,
        USE_FNUZ=module._USE_FNUZ,
        USE_PDL=early,
        **({"launch_pdl": True} if early else {}),
        num_warps=1,
    )


_BINDINGS: dict[str, Callable[[Any, Any, str], Callable[[], None]]] = {
    "fused_norm_rope": _bind_norm_rope,
    "fused_q": _bind_q,
}
FUSED = frozenset(_BINDINGS)
