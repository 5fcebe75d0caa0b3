"""The provider vllm on fused operations: its reasons, and the calls that it makes of vLLM's Python package.

A package with vLLM's signatures, made here, stands in for it; it records what it is called with.
"""

import importlib
import sys
import textwrap

import pytest
import torch
from plugins import hide

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.providers import load_providers, vllm_fused

SM90, SM100 = Architecture(9, 0), Architecture(10, 0)
NORM_ROPE, FUSED_Q = get_operation("fused_norm_rope"), get_operation("fused_q")
KERNELS = """
    calls = []
    _FP8_MAX, _USE_FNUZ = 448.0, False


    class current_platform:
        is_arch_support_pdl = staticmethod(lambda: True)


    def mqa_logits_use_mx_scales():
        return False


    def fused_norm_rope(
        positions, q_c, q_rms_norm_w, q_rms_eps, kv_c, kv_rms_norm_w, kv_rms_eps, k_pe, k_rope_cos_sin_cache, index_k,
        index_k_layer_norm_w, index_k_layer_norm_bias, index_k_layer_norm_eps, index_k_rope_cos_sin_cache,
        topk_indices_buffer, slot_mapping=None, indexer_slot_mapping=None, indexer_k_cache=None,
        indexer_cache_shuffled=False, mla_kv_cache=None, mla_kv_cache_dtype="auto", mla_k_scale=None, has_indexer=True,
        index_rope_interleave=False, q_c_out=None, kv_c_out=None, k_pe_out=None, index_k_out=None, skip_scale=False,
    ):
        calls.append(locals())


    class _fused_q_kernel:
        def __class_getitem__(cls, grid):
            return lambda **arguments: calls.append({"grid": grid, **arguments})
"""


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """The package's module of kernels, importable as vLLM's is."""
    folder = tmp_path.joinpath(*vllm_fused.MODULE.split(".")[:-1])
    folder.mkdir(parents=True)
    (folder / "kernels.py").write_text(textwrap.dedent(KERNELS))
    monkeypatch.syspath_prepend(tmp_path)
    names = [name for name in sys.modules if name.split(".")[0] == "vllm"]
    for name in {*names, "vllm", vllm_fused.MODULE}:
        monkeypatch.setitem(sys.modules, name, None)  # so that what is imported here is forgotten afterwards
        del sys.modules[name]
    vllm_fused._module.cache_clear()
    yield importlib.import_module(vllm_fused.MODULE)
    vllm_fused._module.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def called(kernels, operation, key, variant, heads=None):
    """The inputs, and the arguments of the one call that the provider makes for them."""
    fmt, shape = get_format(key), Shape(3, block_size=4, heads=heads, variant=variant)
    inputs = operation.make_inputs(fmt, shape, torch.device("cpu"), torch.Generator().manual_seed(0))
    load_providers({})["vllm"].bind(operation, fmt, inputs, SM90)()
    [call] = kernels.calls
    return inputs, call


@pytest.mark.parametrize(
    ("operation", "key", "arch", "reason"),
    [
        (NORM_ROPE, "fp8_ds_mla", Architecture(8, 0), "needs a conversion to e4m3 that Triton lacks on sm_80"),
        (NORM_ROPE, "nvfp4_ds_mla", SM90, "writes nvfp4_ds_mla on sm_100 and sm_103; found sm_90"),
        (NORM_ROPE, "fp8_ds_mla:amax448", SM90, "vLLM 0.33 does not write revision amax448 of fp8_ds_mla"),
        (NORM_ROPE, "dsv4_584", SM90, "no vLLM operator is bound to dsv4_584 here"),
        (FUSED_Q, "fp8", SM100, "vLLM's fused_q is a CuTe kernel on sm_100, which is not bound here"),
        (NORM_ROPE, "nvfp4_ds_mla", SM100, None),
        (NORM_ROPE, "bf16", SM90, None),
        (FUSED_Q, "fp8", SM90, None),
    ],
)
def test_a_case_that_vllm_cannot_serve_has_a_reason(kernels, operation, key, arch, reason):
    found = load_providers({})["vllm"].why_not(operation, get_format(key), arch)
    assert found == reason if reason is None else reason in found


def test_another_layout_of_the_indexers_scales_is_refused(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "mqa_logits_use_mx_scales", lambda: True)
    reason = load_providers({})["vllm"].why_not(NORM_ROPE, get_format("fp8_ds_mla"), SM100)
    assert reason == "vLLM's fused_norm_rope stores ue8m0 scales in the indexer's cache on sm_100, another layout"


def test_without_the_package_or_with_a_broken_one_the_reason_says_so(kernels, monkeypatch):
    monkeypatch.setitem(sys.modules, vllm_fused.MODULE, None)
    vllm_fused._module.cache_clear()
    provider, fmt = load_providers({})["vllm"], get_format("bf16")
    reason = provider.why_not(FUSED_Q, fmt, SM90)
    assert reason.startswith(f"{vllm_fused.MODULE} cannot be imported (ModuleNotFoundError: ")
    hide(monkeypatch, "vllm")
    vllm_fused._module.cache_clear()
    reason = "vLLM is not installed; its fused kernels are part of its Python package, not of --vllm-library"
    assert provider.why_not(FUSED_Q, fmt, SM90) == reason


@pytest.mark.parametrize(("key", "dtype"), [("bf16", "auto"), ("fp8", "fp8"), ("fp8_ds_mla", "fp8_ds_mla")])
@pytest.mark.parametrize("variant", NORM_ROPE.variants)
def test_fused_norm_rope_is_called_with_the_inputs_own_tensors(kernels, key, dtype, variant):
    inputs, call = called(kernels, NORM_ROPE, key, variant)
    indexed, kept = not variant.startswith("no-"), variant.endswith("+kv")
    assert (call["mla_kv_cache_dtype"], call["has_indexer"], call["skip_scale"]) == (dtype, indexed, False)
    assert call["mla_kv_cache"].data_ptr() == inputs.cache.data_ptr()
    assert call["mla_kv_cache"].dtype == (torch.bfloat16 if key == "bf16" else torch.uint8)
    assert call["q_c_out"] is inputs.q_c_out
    assert (call["kv_c_out"] is not None, call["k_pe_out"] is not None) == (kept, kept)
    assert call["kv_c_out"] is inputs.kv_c_out
    assert call["k_pe_out"] is inputs.k_pe_out
    assert (call["topk_indices_buffer"] is inputs.topk_indices, call["indexer_k_cache"] is not None) == (indexed,) * 2
    assert torch.equal(call["slot_mapping"], inputs.slot_mapping)
    assert float(call["mla_k_scale"]) == pytest.approx(0.3 if key == "fp8" else 1.0)
    assert (call["q_rms_eps"], call["index_k_layer_norm_eps"]) == (inputs.rms_eps, inputs.index_eps)


@pytest.mark.parametrize("key", ["bf16", "fp8"])
@pytest.mark.parametrize("variant", FUSED_Q.variants)
def test_fused_q_is_launched_into_the_inputs_own_outputs_as_vllm_launches_it(kernels, key, variant):
    inputs, call = called(kernels, FUSED_Q, key, variant, heads=7)
    indexed, quantized = variant == "indexer", key == "fp8"
    assert call["grid"] == (3, 3, 64 if indexed else 4)
    assert (call["num_warps"], call["USE_PDL"], call["launch_pdl"]) == (1, True, True)
    assert (call["HAS_INDEXER"], call["QUANTIZE_MQA"]) == (indexed, quantized)
    assert call["mqa_q_fp8_ptr"] is inputs.query
    assert call["q_pe_out_ptr"] is inputs.query
    assert (call["index_q_fp8_ptr"] is inputs.index_q_out) == indexed
    assert (call["NUM_Q_HEADS"], call["Q_PE_HALF_ROT_DIM"], call["mqa_q_fp8_stride1"]) == (
        7,
        32,
        576 if quantized else 64,
    )


def test_the_hash_of_a_compiled_library_is_not_that_of_its_python_kernels(kernels, tmp_path):
    library = tmp_path / "library.so"
    library.write_bytes(b"operators")
    provider, fmt = load_providers({"vllm": library})["vllm"], get_format("bf16")
    assert provider.binary_sha256(get_operation("write"), fmt, None, SM90)
    assert provider.binary_sha256(NORM_ROPE, fmt, None, SM90) is None
