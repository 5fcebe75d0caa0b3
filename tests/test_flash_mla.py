"""The provider flash_mla: why it cannot serve a case, and the call that it makes.

The operator is a fake with FlashMLA's schema, registered with torch, so that its dispatcher checks every argument. The
package is a module with the interface of FlashMLA's own.
"""

import hashlib
import inspect
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from plugins import hide

from dsmla_bench.bench import cases
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.providers import flash_mla, load_providers

SCHEMA = (
    "sparse_decode_fwd(Tensor q, Tensor kv, Tensor indices, Tensor? topk_length, Tensor? attn_sink, "
    "Tensor(a)? tile_scheduler_metadata, Tensor(b)? num_splits, Tensor? extra_kv, Tensor? extra_indices, "
    "Tensor? extra_topk_length, int d_v, float sm_scale, Tensor(c!)? out_=None, bool enable_batch_invariant=False) "
    "-> (Tensor(c!), Tensor, Tensor(a)?, Tensor(b)?)"
)
"""Of the operator in vLLM 0.33.0's wheel."""
SM90, SM100 = Architecture(9, 0), Architecture(10, 0)
FP8, NVFP4 = get_format("fp8_ds_mla"), get_format("nvfp4_ds_mla")
DECODE = get_operation("decode")


@pytest.fixture
def calls(monkeypatch):
    """The calls made to an operator that writes 2 into out, and to lse the number of the head."""
    found = []
    library = torch.library.Library("dsmla_bench_fake_flash_mla", "DEF")
    library.define(SCHEMA)

    def operator(q, kv, indices, topk_length, sink, metadata, splits, a, b, c, d_v, scale, out=None, invariant=False):
        found.append({"q": q, "kv": kv, "indices": indices, "sink": sink, "metadata": metadata, "splits": splits})
        found[-1] |= {"d_v": d_v, "scale": scale, "unused": (topk_length, a, b, c, invariant)}
        out.fill_(2.0)
        lse = torch.arange(q.shape[2]).float()[None, :, None].expand(len(q), -1, q.shape[1]).contiguous()
        return out, lse, torch.ones(3), torch.ones(4)

    library.impl("sparse_decode_fwd", operator, "CPU")
    monkeypatch.setattr(torch.ops, "_flashmla_C", torch.ops.dsmla_bench_fake_flash_mla)
    yield found
    library._destroy()


@pytest.fixture
def provider(calls, monkeypatch, tmp_path):
    library = tmp_path / "_flashmla_C.abi3.so"
    library.write_bytes(b"machine code")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    return load_providers({"flash_mla": library})["flash_mla"]


def inputs_of(heads, topk, queries=1):
    shape = Shape(2, 1, 16, True, heads=heads, topk=topk, queries=queries)
    return DECODE.make_inputs(FP8, shape, torch.device("cpu"), torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("key", "arch", "reason"),
    [
        ("fp8_ds_mla", SM90, None),
        ("fp8_ds_mla", SM100, None),
        ("fp8_ds_mla:amax448", SM90, None),
        (
            "fp8_ds_mla:amax448",
            SM100,
            "FlashMLA truncates scales to powers of two on sm_100, and those of fp8_ds_mla:amax448 are others",
        ),
        ("nvfp4_ds_mla", SM100, None),
        ("nvfp4_ds_mla", SM90, "FlashMLA decodes nvfp4_ds_mla on sm_100 only; found sm_90"),
        ("fp8_ds_mla", Architecture(12, 0), "FlashMLA decodes fp8_ds_mla on sm_90 and sm_100 only; found sm_120"),
        ("bf16", SM90, "FlashMLA's sparse decode reads fp8_ds_mla and nvfp4_ds_mla here, not bf16"),
    ],
)
def test_it_says_what_it_cannot_decode(provider, key, arch, reason):
    assert provider.why_not(DECODE, get_format(key), arch) == reason


def test_other_operations_are_not_its_own(provider):
    assert provider.why_not(get_operation("write"), FP8, SM90) == "FlashMLA has no write"


def test_without_flash_mla_the_reason_says_what_to_do(monkeypatch):
    hide(monkeypatch, "flash_mla", "vllm")
    reason = load_providers({})["flash_mla"].why_not(DECODE, FP8, SM90)
    assert reason == (
        "FlashMLA is not installed; install flash_mla or vLLM, or give the compiled operators with --flash-mla-library"
    )


def test_a_library_that_is_none_is_named_with_what_is_wrong(tmp_path):
    text = tmp_path / "notes.so"
    text.write_text("no machine code here")
    for path, what in ((tmp_path / "missing.so", "no such file"), (text, "cannot be loaded (")):
        reason = load_providers({"flash_mla": path})["flash_mla"].why_not(DECODE, FP8, SM90)
        assert reason.startswith(f"--flash-mla-library {path}: {what}")
        assert "\n" not in reason


def test_a_library_without_the_operator_is_refused(provider, monkeypatch):
    monkeypatch.setattr(torch.ops, "_flashmla_C", SimpleNamespace())
    assert provider.why_not(DECODE, FP8, SM90) == f"{provider.library} has no operator sparse_decode_fwd"


def test_the_file_is_named_by_its_name_and_hash(provider):
    assert provider.version() == "_flashmla_C.abi3.so"
    assert provider.binary_sha256(DECODE, FP8, None, SM90) == hashlib.sha256(b"machine code").hexdigest()


def test_64_heads_are_decoded_in_place(provider, calls):
    inputs = inputs_of(64, 128)
    provider.bind(DECODE, FP8, inputs, SM90)()
    _, call = calls  # the first one plans
    assert call["q"].data_ptr() == inputs.q.data_ptr()
    assert call["kv"].shape == (*inputs.cache.shape[:2], 1, 656)
    assert call["kv"].data_ptr() == inputs.cache.data_ptr()
    assert torch.equal(call["indices"], inputs.indices)
    assert (call["d_v"], call["scale"], call["unused"]) == (512, inputs.softmax_scale, (None, None, None, None, False))
    assert bool((inputs.out == 2).all())
    assert torch.equal(inputs.lse, torch.arange(64.0).expand(2, 1, 64))


def test_heads_and_rows_are_padded(provider, calls):
    inputs = inputs_of(16, 100, queries=2)
    provider.bind(DECODE, FP8, inputs, SM90)()
    _, call = calls  # the first one plans
    assert call["q"].shape == (2, 2, 64, 576)
    assert torch.equal(call["q"][:, :, :16], inputs.q)
    assert call["indices"].shape == (2, 2, 128)
    assert bool((call["indices"][..., 100:] == -1).all())
    assert bool((inputs.out == 2).all())
    assert torch.equal(inputs.lse, torch.arange(16.0).expand(2, 2, 16))


def test_binding_plans_so_that_no_call_that_is_timed_does(provider, calls):
    call = provider.bind(DECODE, FP8, inputs_of(64, 64), SM90)
    assert len(calls) == 1
    call()
    assert (calls[0]["metadata"], calls[0]["splits"]) == (None, None)
    assert (calls[1]["metadata"].shape, calls[1]["splits"].shape) == ((3,), (4,))


@pytest.mark.parametrize("heads", [128, 129])
def test_more_heads_than_it_takes_are_a_skipped_row(provider, heads):
    reason = "FlashMLA decodes up to 128 heads, found 129" if heads == 129 else None
    axes = Axes(("decode",), ("fp8_ds_mla",), ("flash_mla",), tokens=(1,), heads=(heads,))
    [case] = expand(axes, SM90)
    assert cases.why_not(provider, case) == reason


def test_more_heads_than_it_takes_are_not_bound(provider):
    with pytest.raises(ValueError, match="FlashMLA decodes up to 128 heads, found 129"):
        provider.bind(DECODE, FP8, inputs_of(129, 64), SM90)


# The package flash_mla


def decode_function(**further):
    """A function with the signature of flash_mla's, and parameters of a later release; it records its arguments."""
    found = []

    def flash_mla_with_kvcache(
        q,
        k_cache,
        block_table,
        cache_seqlens,
        head_dim_v,
        tile_scheduler_metadata,
        num_splits=None,
        softmax_scale=None,
        causal=False,
        is_fp8_kvcache=False,
        indices=None,
        attn_sink=None,
        extra_k_cache=None,
        extra_indices_in_kvcache=None,
        topk_length=None,
        extra_topk_length=None,
        **later,
    ):
        found.append({name: value for name, value in locals().items() if name not in ("later", "found")} | later)
        lse = torch.arange(q.shape[2]).float()[None, :, None].expand(len(q), -1, q.shape[1]).contiguous()
        return torch.full((*q.shape[:3], head_dim_v), 2.0, dtype=torch.bfloat16), lse

    signature = inspect.signature(flash_mla_with_kvcache)
    parameters = [item for name, item in signature.parameters.items() if name != "later"]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=off) for name, off in further.items()
    ]
    flash_mla_with_kvcache.__signature__ = signature.replace(parameters=parameters)
    return found, flash_mla_with_kvcache


def install(monkeypatch, function):
    """The package, importable; its schedule is the word."""
    package = ModuleType("flash_mla")
    package.__spec__ = ModuleSpec("flash_mla", None)
    package.get_mla_metadata = lambda: ("schedule", None)
    package.flash_mla_with_kvcache = function
    monkeypatch.setitem(sys.modules, "flash_mla", package)
    return load_providers({})["flash_mla"]


@pytest.mark.parametrize("further", [{}, {"enable_batch_invariant": False, "use_legacy": False}])
def test_the_package_is_called_by_its_own_interface(monkeypatch, further):
    found, function = decode_function(**further)
    provider = install(monkeypatch, function)
    assert provider.why_not(DECODE, FP8, SM90) is None
    inputs = inputs_of(16, 100, queries=2)
    provider.bind(DECODE, FP8, inputs, SM90)()
    _, call = found  # the first one plans
    assert (call.get("use_legacy", False), call["is_fp8_kvcache"], call["causal"]) == (bool(further), True, False)
    assert (call["block_table"], call["cache_seqlens"], call["num_splits"]) == (None, None, None)
    assert (call["tile_scheduler_metadata"], call["head_dim_v"]) == ("schedule", 512)
    assert call["softmax_scale"] == inputs.softmax_scale
    assert (call["q"].shape, call["indices"].shape) == ((2, 2, 64, 576), (2, 2, 128))
    assert (call["k_cache"].shape, call["k_cache"].dtype) == ((*inputs.cache.shape[:2], 1, 656), torch.float8_e4m3fn)
    assert call["k_cache"].data_ptr() == inputs.cache.data_ptr()
    assert bool((inputs.out == 2).all())
    assert torch.equal(inputs.lse, torch.arange(16.0).expand(2, 2, 16))
    assert provider.binary_sha256(DECODE, FP8, inputs, SM90) is None


def test_the_version_is_that_of_the_distribution_that_has_the_package(monkeypatch):
    provider = install(monkeypatch, decode_function()[1])
    monkeypatch.setattr(flash_mla, "installed_version", {"sgl-flash-mla": "1.0.0", "vllm": "0.33.0"}.get)
    assert provider.version() == "1.0.0"


def test_the_outputs_of_64_heads_are_copied_too(monkeypatch):
    provider = install(monkeypatch, decode_function()[1])
    assert provider.why_not(DECODE, FP8, SM90) is None
    inputs = inputs_of(64, 64)
    provider.bind(DECODE, FP8, inputs, SM90)()
    assert bool((inputs.out == 2).all())


def test_a_package_that_does_not_read_the_format_is_refused(monkeypatch):
    later = install(monkeypatch, decode_function(enable_batch_invariant=False)[1])
    assert later.why_not(DECODE, FP8, SM90) == (
        "the installed flash_mla, of 2026-09-30 or later, reads DeepSeek-V4.1's caches only; "
        "install an earlier one or sgl-flash-mla"
    )
    earlier = install(monkeypatch, lambda q, k_cache, indices=None: None)
    reason = "the installed flash_mla has another interface of its sparse decode; install a later one"
    assert earlier.why_not(DECODE, FP8, SM90) == reason
    broken = install(monkeypatch, None)
    reason = "the installed flash_mla cannot be used (TypeError: None is not a callable object)"
    assert broken.why_not(DECODE, FP8, SM90) == reason
    own = install(monkeypatch, decode_function()[1])
    reason = "the installed flash_mla does not read nvfp4_ds_mla; vLLM's copy of FlashMLA does"
    assert own.why_not(DECODE, NVFP4, SM100) == reason


def test_without_a_package_the_operator_of_an_installed_vllm_is_taken(calls, monkeypatch):
    hide(monkeypatch, "flash_mla")
    package = ModuleType("vllm")
    package.__spec__ = ModuleSpec("vllm", None)
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm._flashmla_C", ModuleType("vllm._flashmla_C"))
    monkeypatch.setattr(flash_mla, "installed_version", {"vllm": "0.33.0"}.get)
    provider = load_providers({})["flash_mla"]
    assert (provider.why_not(DECODE, FP8, SM90), provider.version()) == (None, "0.33.0")
    provider.bind(DECODE, FP8, inputs_of(64, 64), SM90)()
    assert len(calls) == 2
    monkeypatch.setitem(sys.modules, "vllm._flashmla_C", None)
    reason = load_providers({})["flash_mla"].why_not(DECODE, FP8, SM90)
    assert reason.startswith("the installed vLLM's FlashMLA cannot be imported (ModuleNotFoundError: ")


def test_a_library_goes_before_the_package(provider, calls, monkeypatch):
    install(monkeypatch, decode_function()[1])
    assert provider.why_not(DECODE, FP8, SM90) is None
    provider.bind(DECODE, FP8, inputs_of(64, 64), SM90)()
    assert len(calls) == 2
