"""The provider flashinfer: why it cannot serve a case, and that its calls do what the operations ask for.

A package with the signatures of FlashInfer 0.7.4, of ``plan`` and ``run`` without arguments that are not passed here,
stands in for it. Its functions check types and shapes as FlashInfer does and then do the work in torch from nothing but
their arguments, so that a wrong one gives a wrong result.
"""

import dataclasses
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch
from plugins import hide

from dsmla_bench.bench import cases
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.providers import flashinfer, load_providers

SM80, SM90, SM100, SM120 = (Architecture(*capability) for capability in ((8, 0), (9, 0), (10, 0), (12, 0)))
WRITE, DECODE = get_operation("write"), get_operation("decode")


def attend(query, rows, scale, out, lse):
    """Attention of one token, query [heads, 576], over rows [n, 576]; lse in natural units, as asked for."""
    logits = query.float() @ rows.float().T * scale
    lse.copy_(logits.logsumexp(dim=-1))
    out.copy_(logits.softmax(dim=-1) @ rows[:, :512].float())


def append_paged_mla_kv_cache(
    append_ckv,
    append_kpe,
    batch_indices,
    positions,
    ckv_cache,
    kpe_cache,
    kv_indices,
    kv_indptr,
    kv_last_page_len,
):
    for index in (batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len):
        assert (index.dtype, index.dim(), index.is_contiguous()) == (torch.int32, 1, True)
    assert len(kv_indptr) == len(kv_last_page_len) + 1
    assert {tensor.dtype for tensor in (append_ckv, append_kpe, ckv_cache, kpe_cache)} == {torch.bfloat16}
    assert (append_ckv.shape[1], ckv_cache.shape[2], append_kpe.shape[1], kpe_cache.shape[2]) == (512, 512, 64, 64)
    assert len(append_ckv) == len(append_kpe) == len(batch_indices) == len(positions)
    page, row = positions // ckv_cache.shape[1], positions % ckv_cache.shape[1]
    page = kv_indices[kv_indptr[batch_indices] + page]
    ckv_cache[page, row] = append_ckv
    kpe_cache[page, row] = append_kpe


@dataclasses.dataclass(frozen=True)
class MLAPlanMetadata:
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    kv_len_arr: torch.Tensor

    @classmethod
    def csr(cls, qo_indptr, kv_indptr, kv_indices, kv_len_arr):
        return cls(qo_indptr, kv_indptr, kv_indices, kv_len_arr)


class BatchMLAPagedAttentionWrapper:
    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        qo_indptr=None,
        kv_indptr=None,
        kv_indices=None,
        kv_len_arr=None,
        backend="auto",
    ):
        assert (float_workspace_buffer.dtype, float_workspace_buffer.numel()) == (torch.uint8, 128 << 20)
        used.append(backend)

    def plan(
        self,
        *,
        metadata,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        lse_mode="none",
    ):
        assert {getattr(metadata, item.name).dtype for item in dataclasses.fields(metadata)} == {torch.int32}
        assert torch.equal(metadata.kv_indptr.diff(), metadata.kv_len_arr)
        assert (head_dim_ckv, head_dim_kpe, page_size, causal, lse_mode) == (512, 64, 1, False, "basee")
        self.metadata, self.num_heads, self.sm_scale = metadata, num_heads, sm_scale
        self.types = (q_data_type, kv_data_type)

    def run(
        self,
        q_nope=None,
        q_pe=None,
        ckv_cache=None,
        kpe_cache=None,
        out=None,
        lse=None,
        return_lse=False,
        profiler_buffer=None,
        kv_len=None,
        page_table=None,
        return_lse_base_on_e=False,
        o_scale=None,
        *,
        query=None,
        kv_cache=None,
        ckv_scale=None,
        ckv_scale_arr=None,
        kpe_scale=None,
        sinks=None,
    ):
        assert (return_lse, return_lse_base_on_e, sinks) == (True, True, None)
        assert (query.dtype, kv_cache.dtype) == self.types
        fp8 = kv_cache.dtype == torch.float8_e4m3fn
        assert (ckv_scale is not None, kpe_scale is not None) == (fp8, fp8)
        scales = torch.tensor([ckv_scale] * 512 + [kpe_scale] * 64) if fp8 else 1.0
        for token in range(len(self.metadata.kv_len_arr)):
            first, last = self.metadata.kv_indptr[token : token + 2]
            [request] = query[self.metadata.qo_indptr[token] : self.metadata.qo_indptr[token + 1]]
            assert len(request) == self.num_heads
            rows = kv_cache[self.metadata.kv_indices[first:last].long(), 0].float() * scales
            attend(request, rows, self.sm_scale, out[token], lse[token])


def trtllm_batch_decode_with_kv_cache_mla(
    query,
    kv_cache,
    workspace_buffer,
    qk_nope_head_dim,
    kv_lora_rank,
    qk_rope_head_dim,
    block_tables,
    seq_lens,
    max_seq_len,
    sparse_mla_top_k=0,
    out=None,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    sinks=None,
    skip_softmax_threshold_scale_factor=None,
    enable_pdl=None,
    backend="auto",
    is_var_seq=True,
    uses_shared_paged_kv_idx=True,
    lse=None,
    return_lse=False,
    cute_dsl_impl="auto",
    kv_scale_format="auto",
    cum_seq_lens_q=None,
    max_q_len=None,
    multi_ctas_kv_counter_buffer=None,
    sparse_mla_top_k_lens=None,
    enable_dcp=False,
    cp_world=1,
    cp_rank=0,
    causal_seqlens_kv_global=None,
    use_fp16_softmax=None,
    return_lse_base=None,
):
    used.append((backend, kv_scale_format))
    tokens, one, heads, width = query.shape
    assert not workspace_buffer.any()
    assert (query.dtype, one, width, kv_lora_rank, qk_rope_head_dim) == (torch.bfloat16, 1, 576, 512, 64)
    assert (block_tables.dtype, block_tables.shape) == (torch.int32, (tokens, 1, sparse_mla_top_k))
    assert (seq_lens.dtype, seq_lens.shape, max_seq_len) == (torch.int32, (tokens,), sparse_mla_top_k)
    assert (out.shape, lse.shape) == ((tokens, 1, heads, 512), (tokens, 1, heads))
    assert (bmm2_scale, return_lse, return_lse_base, sinks) == (1.0, True, "basee", None)
    if backend == "sparse":
        assert (kv_cache.dtype, kv_cache.shape[2]) == (torch.uint8, 656)
        rows = torch.cat(get_format("fp8_ds_mla").dequantize(kv_cache.flatten(0, 1)), dim=-1)
    else:
        assert (kv_cache.dtype, kv_cache.shape[2]) == (torch.bfloat16, 576)
        rows = kv_cache.flatten(0, 1)
    for token in range(tokens):
        slots = block_tables[token, 0, : seq_lens[token]].long()
        assert bool((slots >= 0).all())
        attend(query[token, 0], rows[slots], bmm1_scale, out[token, 0], lse[token, 0])


used = []
"""The backends that were asked for, by name."""


@pytest.fixture
def provider(monkeypatch):
    """The provider with the package installed, and a compiler."""
    package, mla = ModuleType("flashinfer"), ModuleType("flashinfer.mla")
    package.append_paged_mla_kv_cache = append_paged_mla_kv_cache
    for item in (MLAPlanMetadata, BatchMLAPagedAttentionWrapper, trtllm_batch_decode_with_kv_cache_mla):
        setattr(mla, item.__name__, item)
    package.__spec__, package.mla = ModuleSpec("flashinfer", None), mla
    monkeypatch.setitem(sys.modules, "flashinfer", package)
    monkeypatch.setitem(sys.modules, "flashinfer.mla", mla)
    monkeypatch.setattr(flashinfer, "_has_nvcc", lambda: True)
    used.clear()
    return load_providers({})["flashinfer"]


def decode_inputs(key, heads=5, topk=12, queries=2):
    """Three requests; the first query token misses rows in the middle, the last one has one row.

    A layer's scale is a power of two: FlashInfer multiplies after the products, the reference rounds code · scale.
    """
    shape = Shape(3, 1, 8, True, heads=heads, topk=topk, queries=queries)
    inputs = DECODE.make_inputs(get_format(key), shape, torch.device("cpu"), torch.Generator().manual_seed(0))
    inputs.indices[0, 0, 3:9] = -1
    inputs.indices[0, 0, 9] = inputs.cache.shape[0] * inputs.cache.shape[1]
    inputs.indices[2, 1, :-1] = -1
    return inputs if inputs.scale is None else dataclasses.replace(inputs, scale=torch.tensor([0.5]))


@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_append_writes_the_bytes_of_the_reference(provider, block_size):
    shape = Shape(9, block_size=block_size, shuffled=True)
    fmt = get_format("bf16")
    inputs = WRITE.make_inputs(fmt, shape, torch.device("cpu"), torch.Generator().manual_seed(0))
    inputs = dataclasses.replace(inputs, slot_mapping=inputs.slot_mapping[:7], cache=inputs.cache.fill_(7))
    other = dataclasses.replace(inputs, cache=inputs.cache.clone())
    provider.bind(WRITE, fmt, inputs, SM90)()
    WRITE.reference(fmt, other)()
    assert torch.equal(inputs.cache, other.cache)


@pytest.mark.parametrize(
    ("key", "arch", "backend"),
    [
        ("bf16", SM80, "fa2"),
        ("bf16", SM90, "fa3"),
        ("bf16", SM100, ("trtllm-gen", "auto")),
        ("bf16", SM120, "fa2"),
        ("fp8", SM90, "fa3"),
        ("fp8_ds_mla", SM120, ("sparse", "pow2_fp32")),
        ("fp8_ds_mla:amax448", SM120, ("sparse", "arbitrary_fp32")),
    ],
)
def test_decode_agrees_with_the_reference(provider, key, arch, backend):
    fmt, inputs = get_format(key), decode_inputs(key)
    provider.bind(DECODE, fmt, inputs, arch)()
    found = {name: tensor.clone() for name, tensor in DECODE.outputs(inputs).items()}
    DECODE.reference(fmt, inputs)()
    assert DECODE.tolerance(found, DECODE.outputs(inputs)) is None
    assert used == [backend]


def test_one_workspace_serves_all_calls(provider):
    for _ in range(2):
        provider.bind(DECODE, get_format("bf16"), decode_inputs("bf16"), SM90)
    assert len(provider._workspaces) == 1


def test_what_the_functions_have_no_argument_for_is_not_bound(provider):
    fmt, inputs = get_format("bf16"), decode_inputs("bf16")
    with pytest.raises(ValueError, match="FlashInfer's decode is bound without a sink here, found one"):
        provider.bind(DECODE, fmt, dataclasses.replace(inputs, sink=torch.zeros(5)), SM90)
    inputs.indices[1] = -1
    with pytest.raises(ValueError, match="FlashInfer needs a row for every query token, found 2 without any"):
        provider.bind(DECODE, fmt, inputs, SM90)
    inputs = WRITE.make_inputs(fmt, Shape(3, block_size=4), torch.device("cpu"), torch.Generator())
    inputs.slot_mapping[1] = -1
    with pytest.raises(ValueError, match="FlashInfer's MLA append writes every token, found 1 negative slots"):
        provider.bind(WRITE, fmt, inputs, SM90)


# Reasons


@pytest.mark.parametrize(
    ("operation", "key", "arch", "reason"),
    [
        ("write", "bf16", SM90, None),
        (
            "write",
            "fp8",
            SM90,
            "FlashInfer's MLA append copies bf16 values and quantizes none, so it writes bf16 only",
        ),
        ("gather", "bf16", SM90, "no FlashInfer function is bound to gather here"),
        ("decode", "bf16", SM90, None),
        ("decode", "fp8", SM100, "FlashInfer decodes fp8 with bf16 queries on sm_90 only; found sm_100"),
        ("decode", "fp8_ds_mla", SM90, "FlashInfer decodes fp8_ds_mla with bf16 queries on sm_120 only; found sm_90"),
        (
            "decode",
            "bf16",
            Architecture(11, 0),
            "FlashInfer decodes bf16 with bf16 queries on sm_80, sm_90, sm_100, sm_120 only; found sm_110",
        ),
        (
            "decode",
            "nvfp4_ds_mla",
            SM100,
            "FlashInfer's sparse MLA decode reads bf16, fp8, fp8_ds_mla here, not nvfp4_ds_mla",
        ),
    ],
)
def test_it_says_what_it_cannot_do(provider, operation, key, arch, reason):
    assert provider.why_not(get_operation(operation), get_format(key), arch) == reason


@pytest.mark.parametrize(
    ("key", "arch", "changes", "reason"),
    [
        ("bf16", SM90, {"heads": (200,), "block_sizes": (16,), "topk": (33,)}, None),
        ("bf16", SM90, {"rope_dim": 0}, "FlashInfer's MLA kernels are bound for 512 + 64 here, found 512 + 0"),
        ("bf16", SM100, {"heads": (128,)}, None),
        ("bf16", SM100, {"heads": (96,)}, "backend decodes up to 64 or 128 heads, found 96"),
        ("bf16", SM100, {"block_sizes": (16,)}, "backend reads pages of 32 or 64 tokens, found 16"),
        ("bf16", SM100, {"topk": (66,)}, "backend takes a top-k of multiples of 4, found 66"),
        ("fp8_ds_mla", SM120, {"heads": (128,), "block_sizes": (16,), "topk": (66,)}, None),
        ("fp8_ds_mla", SM120, {"heads": (129,)}, "FlashInfer's sparse backend decodes up to 128 heads, found 129"),
    ],
)
def test_a_shape_that_it_cannot_serve_is_a_skipped_row(provider, key, arch, changes, reason):
    axes = Axes(("decode",), (key,), ("flashinfer",), tokens=(1,), **{"heads": (16,), **changes})
    [case] = expand(axes, arch)
    found = cases.why_not(provider, case)
    assert found is None if reason is None else reason in found


def test_without_flashinfer_the_reason_says_what_to_do(provider, monkeypatch):
    def why_not():
        return provider.why_not(DECODE, get_format("bf16"), SM90)

    monkeypatch.setattr(flashinfer, "_has_nvcc", lambda: False)
    reason = "FlashInfer compiles its kernels and finds no nvcc; install flashinfer-jit-cache or set CUDA_HOME"
    assert why_not() == reason
    monkeypatch.delattr(sys.modules["flashinfer.mla"], "MLAPlanMetadata")
    monkeypatch.setattr(flashinfer, "installed_version", {"flashinfer-python": "0.6.18"}.get)
    assert why_not() == (
        "FlashInfer 0.6.18 lacks mla.MLAPlanMetadata; what is bound here is the interface of FlashInfer 0.7"
    )
    assert provider.version() == "0.6.18"
    monkeypatch.setitem(sys.modules, "flashinfer.mla", None)
    assert why_not().startswith("the installed FlashInfer cannot be imported (ModuleNotFoundError: ")
    hide(monkeypatch, "flashinfer")
    assert why_not() == "FlashInfer is not installed; install flashinfer-python"


def test_a_compiler_is_looked_for_where_flashinfer_does(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    compiler = tmp_path / "cuda" / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.touch(mode=0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert flashinfer._has_nvcc()
