"""Providers: the reasons why one cannot serve a case, and the calls that the provider vllm makes.

The operators are fakes with vLLM's schemas, registered with torch, so that its dispatcher checks every argument's
position and kind as it does for the real ones.
"""

import dataclasses
import itertools
import sys
from types import SimpleNamespace

import pytest
import torch
import triton
from plugins import hide

from dsmla_bench.bench.manifest import find_device
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.providers import load_providers

SM90 = Architecture(9, 0)
FORMATS = [get_format(name) for name in ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")]
EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
OPERATIONS = [get_operation(name) for name in ("write", "gather")]
SCHEMAS = {
    "concat_and_cache_mla": "Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slot_mapping, str kv_cache_dtype, "
    "Tensor scale, bool skip_scale=False",
    "cp_gather_cache": "Tensor src_cache, Tensor(a!) dst, Tensor block_table, Tensor cu_seq_lens, int batch_size, "
    "Tensor? seq_starts=None",
    "gather_and_maybe_dequant_cache": "Tensor src_cache, Tensor(a!) dst, Tensor block_table, Tensor cu_seq_lens, "
    "Tensor token_to_seq, int num_tokens, str kv_cache_dtype, Tensor scale, Tensor? seq_starts=None",
    "cp_gather_and_upconvert_fp8_kv_cache": "Tensor src_cache, Tensor(a!) dst, Tensor block_table, "
    "Tensor workspace_starts, int batch_size, Tensor? seq_starts=None, Tensor? host_cache=None, "
    "Tensor? host_row_ids=None, Tensor? device_row_ids=None",
    "cp_gather_and_upconvert_nvfp4_kv_cache": "Tensor src_cache, Tensor(a!) dst, Tensor block_table, "
    "Tensor workspace_starts, int batch_size",
}
"""Of vLLM 0.33's cache operators, as torch prints them once its library is loaded."""


@pytest.fixture(scope="module")
def recorded():
    """Operators with these schemas on the CPU, which record name and arguments by name of every call."""
    calls = []
    library = torch.library.Library("dsmla_bench_fakes", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(f"{name}({schema}) -> ()")
        names = [parameter.split("=")[0].split()[-1] for parameter in schema.split(", ")]
        library.impl(name, _recorder(calls, name, names), "CPU")
    yield calls
    del library


@pytest.fixture
def calls(recorded, monkeypatch):
    """The calls made, with the recording operators in the place of vLLM's."""
    recorded.clear()
    monkeypatch.setattr(torch.ops, "_C_cache_ops", torch.ops.dsmla_bench_fakes)
    return recorded


def _recorder(calls, name, names):
    def operator(*arguments):
        calls.append((name, dict(zip(names, arguments, strict=False))))

    return operator


@pytest.fixture
def loaded(calls, monkeypatch, tmp_path):
    """The provider vllm with a library that holds the fake operators."""
    library = tmp_path / "_C_stable_libtorch.abi3.so"
    library.touch()
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    return load_providers({"vllm": library})["vllm"]


def inputs_of(operation, fmt, **changes):
    """Inputs for 5 tokens of 3 requests, which start at 0, 1 and 3."""
    generator = torch.Generator().manual_seed(0)
    inputs = get_operation(operation).make_inputs(fmt, Shape(5, 3, 4), torch.device("cpu"), generator)
    return dataclasses.replace(inputs, **changes)


def called(provider, operation, fmt, inputs, calls):
    """Operator and arguments of the one call that the provider makes for these inputs."""
    provider.bind(get_operation(operation), fmt, inputs, SM90)()
    [call] = calls
    return call


def typed(tensor):
    return (tensor.dtype, tensor.tolist())


# Reasons


@pytest.mark.parametrize(
    ("capability", "label"),
    [
        ((8, 0), "sm_80"),
        ((9, 0), "sm_90"),
        ((10, 0), "sm_100"),
        ((10, 3), "sm_103"),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_121"),
    ],
)
def test_every_architecture_has_its_name_and_its_reasons(monkeypatch, loaded, capability, label):
    """Case A15: a device of any capability is named right, and each provider says what it lacks there and what for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    properties = SimpleNamespace(major=capability[0], minor=capability[1], name="a GPU", uuid="GPU-0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    index, arch = find_device()
    assert (index, arch.label, arch.name) == (0, label, label.replace("_", ""))
    expected = {}
    if label == "sm_80":
        for name in ("fp8", "fp8_ds_mla", "nvfp4_ds_mla"):
            expected["triton", name] = f"{name} needs an exact conversion that sm_80 lacks; the first with it is sm_90"
    if capability[0] != 10:
        reason = f"vLLM's nvfp4_ds_mla operators require sm_100 or sm_103; found {label}"
        expected["vllm", "nvfp4_ds_mla"] = reason
    providers = {**load_providers({}), "vllm": loaded}
    for name, fmt, operation in itertools.product(("reference", "triton", "vllm"), FORMATS, OPERATIONS):
        assert providers[name].why_not(operation, fmt, arch) == expected.get((name, fmt.name))


@pytest.mark.parametrize("key", ["fp8_ds_mla:amax448", "nvfp4_ds_mla:up"])
def test_vllm_writes_one_revision_of_a_format(loaded, key):
    fmt = get_format(key)
    reason = loaded.why_not(get_operation("write"), fmt, Architecture(10, 0))
    assert reason == f"vLLM 0.33 does not write revision {fmt.revision} of {fmt.name}"


def test_vllm_knows_its_own_formats_and_operations_only(loaded):
    write, bf16 = get_operation("write"), get_format("bf16")
    toy = dataclasses.replace(bf16, name="toy")
    assert loaded.why_not(write, toy, SM90) == "no vLLM operator is bound to toy here"
    other = dataclasses.replace(write, name="scatter")
    assert loaded.why_not(other, bf16, SM90) == "no vLLM operator is bound to scatter here"


@EVERY_FORMAT
def test_without_vllm_the_reason_says_what_to_do(monkeypatch, fmt):
    hide(monkeypatch, "vllm")
    provider = load_providers({})["vllm"]
    reasons = {provider.why_not(operation, fmt, Architecture(10, 0)) for operation in OPERATIONS}
    assert reasons == {"vLLM is not installed; install it, or give its compiled operators with --vllm-library"}


def test_a_library_that_is_none_is_named_with_what_is_wrong(tmp_path, monkeypatch):
    text = tmp_path / "notes.so"
    text.write_text("no machine code here\n" * 100)
    for path, what in ((tmp_path / "missing.so", "no such file"), (tmp_path, "no such file"), (text, "cannot be load")):
        provider = load_providers({"vllm": path})["vllm"]
        for operation in OPERATIONS:
            reason = provider.why_not(operation, get_format("bf16"), SM90)
            assert reason.startswith(f"--vllm-library {path}: {what}")
            assert "\n" not in reason


def test_a_library_without_the_operators_is_refused(loaded, monkeypatch):
    monkeypatch.setattr(torch.ops, "_C_cache_ops", SimpleNamespace())
    reason = loaded.why_not(get_operation("write"), get_format("bf16"), SM90)
    assert reason == f"{loaded.library} has no operator concat_and_cache_mla"
    assert loaded.version() == "_C_stable_libtorch.abi3.so"


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (
            "raise ImportError('libcudart.so.13: cannot open\\nshared object')",
            "ImportError: libcudart.so.13: cannot open",
        ),
        ("import torch; torch.a_name_of_another_version", "AttributeError: module 'torch' has no attribute"),
        ("raise RuntimeError", "RuntimeError)"),
    ],
)
def test_an_installed_vllm_that_cannot_be_imported_costs_its_rows_only(tmp_path, monkeypatch, statement, what):
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_custom_ops.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("vllm", "vllm._custom_ops"):
        monkeypatch.setitem(sys.modules, module, None)  # so that what is imported here is forgotten afterwards
        del sys.modules[module]
    reason = load_providers({})["vllm"].why_not(get_operation("write"), get_format("bf16"), SM90)
    assert reason.startswith(f"the installed vLLM cannot be imported ({what}")
    assert "\n" not in reason


def test_versions_are_those_of_what_runs():
    versions = {name: provider.version() for name, provider in load_providers({}).items()}
    assert (versions["reference"], versions["triton"]) == (torch.__version__, triton.__version__)


# Calls of vLLM's operators


@EVERY_FORMAT
@pytest.mark.parametrize("slot_type", [torch.int32, torch.int64])
def test_write_calls_concat_and_cache_mla(loaded, calls, fmt, slot_type):
    inputs = inputs_of("write", fmt)
    inputs = dataclasses.replace(inputs, slot_mapping=inputs.slot_mapping.to(slot_type))
    name, found = called(loaded, "write", fmt, inputs, calls)
    assert name == "concat_and_cache_mla"
    assert found["kv_cache_dtype"] == ("auto" if fmt.name == "bf16" else fmt.name)
    assert torch.equal(found["kv_c"], inputs.kv_c)
    assert torch.equal(found["k_pe"], inputs.k_pe)
    assert typed(found["slot_mapping"]) == (torch.int64, inputs.slot_mapping.tolist())
    assert typed(found["scale"]) == (torch.float32, [pytest.approx(0.3) if fmt.name == "fp8" else 1.0])
    check_cache(found["kv_cache"], fmt, inputs)


def check_cache(cache, fmt, inputs):
    """The very memory of the inputs' cache; bf16 in bf16 elements, as vLLM's operators count them."""
    assert cache.data_ptr() == inputs.cache.data_ptr()
    dtype, width = (torch.bfloat16, 576) if fmt.name == "bf16" else (torch.uint8, fmt.row_bytes())
    assert (cache.dtype, cache.shape) == (dtype, (*inputs.cache.shape[:2], width))


GATHERS = {
    "bf16": ("cp_gather_cache", {"cu_seq_lens": [0, 1, 3, 5], "batch_size": 3}),
    "fp8": (
        "gather_and_maybe_dequant_cache",
        {"cu_seq_lens": [0, 1, 3, 5], "token_to_seq": [0, 1, 1, 2, 2], "num_tokens": 5, "kv_cache_dtype": "fp8"},
    ),
    "fp8_ds_mla": ("cp_gather_and_upconvert_fp8_kv_cache", {"workspace_starts": [0, 1, 3], "batch_size": 3}),
    "nvfp4_ds_mla": ("cp_gather_and_upconvert_nvfp4_kv_cache", {"workspace_starts": [0, 1, 3], "batch_size": 3}),
}


@EVERY_FORMAT
@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
def test_gather_calls_the_operator_of_the_format(loaded, calls, fmt, index_type):
    inputs = inputs_of("gather", fmt, workspace_starts=torch.tensor([0, 1, 3, 99], dtype=index_type))
    name, found = called(loaded, "gather", fmt, inputs, calls)
    expected_name, expected = GATHERS[fmt.name]
    assert name == expected_name
    for argument, value in expected.items():
        given = found[argument]
        assert given == value if not isinstance(given, torch.Tensor) else typed(given) == (torch.int32, value)
    assert found["dst"].data_ptr() == inputs.workspace.data_ptr()
    assert (found["dst"].dtype, found["dst"].shape) == (torch.bfloat16, (5, 576))
    assert typed(found["block_table"]) == (torch.int32, inputs.block_table.tolist())
    assert found.get("seq_starts") is None
    if fmt.name == "fp8":
        assert typed(found["scale"]) == (torch.float32, [pytest.approx(0.3)])
    check_cache(found["src_cache"], fmt, inputs)


@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8_ds_mla"])
@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
def test_gather_passes_seq_starts_on_as_int32(loaded, calls, name, index_type):
    inputs = inputs_of("gather", get_format(name), seq_starts=torch.tensor([2, 0, 1], dtype=index_type))
    _, found = called(loaded, "gather", get_format(name), inputs, calls)
    assert typed(found["seq_starts"]) == (torch.int32, [2, 0, 1])


def test_gather_of_nvfp4_refuses_seq_starts_which_its_operator_lacks(loaded, calls):
    fmt = get_format("nvfp4_ds_mla")
    inputs = inputs_of("gather", fmt, seq_starts=torch.tensor([2, 0, 1]))
    with pytest.raises(ValueError, match="cp_gather_and_upconvert_nvfp4_kv_cache takes no seq_starts"):
        loaded.bind(get_operation("gather"), fmt, inputs, Architecture(10, 0))
    assert not calls
