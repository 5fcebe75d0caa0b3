"""Cross-compiling without a GPU: what a launch would run, for every architecture, its resources, and its failures."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from builders import case
from processes import run_python
from triton.runtime.jit import JITFunction

from dsmla_bench.bench.compile import CompileError, compile_launch, resource_usage, source_of
from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.launch import Launch

FORMATS = ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")
TARGETS = ("sm90", "sm100", "sm103", "sm120")


@pytest.fixture(scope="module")
def compiler():
    """A worker process that compiles."""
    worker = Worker(WorkerConfig("compile"))
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the script ``compiling.py`` prints, with a cache that no other copy of these sources has filled."""
    cache = tmp_path_factory.mktemp("triton")
    done = run_python(Path(__file__).with_name("compiling.py"), TRITON_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("arch", TARGETS)
def test_every_kernel_compiles_without_spilling(compiler, arch):
    """At 65536 tokens, where a program holds most tokens and needs most registers."""
    for operation, name in itertools.product(("write", "gather"), FORMATS):
        found = compiler.measure(case(operation, name, tokens=65536, arch=arch))
        assert found.status == "compiled", f"{operation} {name}: {found.reason}"
        assert found.facts["spilled_bytes"] == 0, f"{operation} {name} spills"
        assert 16 <= found.facts["registers"] <= 128
        assert found.reason == f"no {Architecture.parse(arch).label} device here: compiled, not timed"


@pytest.mark.parametrize(("arch", "conversion"), [("sm90", "emulated"), ("sm100", "native"), ("sm120", "native")])
def test_an_emulated_conversion_is_labelled(compiler, arch, conversion):
    """Case A15: such a row is never compared with a native one."""
    assert compiler.measure(case("write", "nvfp4_ds_mla", arch=arch)).facts["conversion"] == conversion


def test_the_predicted_floor_is_bytes_over_the_published_bandwidth(compiler):
    facts = compiler.measure(case("write", "fp8_ds_mla", tokens=8192)).facts
    assert (facts["bytes_read"], facts["bytes_written"]) == (8192 * (1152 + 8), 8192 * 656)
    assert facts["predicted_us"] == pytest.approx(8192 * (1160 + 656) / 4.8e12 * 1e6)
    unpublished = compiler.measure(case("write", "bf16", arch="sm121")).facts
    assert unpublished["published_gbps"] is unpublished["predicted_us"] is None


@pytest.mark.parametrize("operation", ["write", "gather"])
def test_a_kernel_that_an_architecture_cannot_run_is_skipped_in_words(compiler, operation):
    """Case A15: sm_80 has no e4m3 conversion; the assembler's complaint never reaches the user."""
    for name in ("fp8", "fp8_ds_mla", "nvfp4_ds_mla"):
        found = compiler.measure(case(operation, name, arch="sm80"))
        assert found.status == "skipped"
        assert found.reason == f"{name} needs an exact conversion that sm_80 lacks; the first with it is sm_90"
        assert "registers" not in found.facts
    assert compiler.measure(case(operation, "bf16", arch="sm80")).status == "compiled"


def test_other_providers_and_geometries_are_skipped_in_words(compiler):
    vllm = compiler.measure(case("write", "bf16", "reference"))
    assert (vllm.status, vllm.reason.startswith("reference ")) == ("skipped", True)
    narrow = compiler.measure(case("write", "fp8_ds_mla", kv_lora_rank=256))
    assert (narrow.status, narrow.reason[:36]) == ("skipped", "fp8_ds_mla needs 512+64, got 256+64 ")


def test_nvfp4_converts_by_instruction_exactly_where_there_is_one(found):
    assert found["e2m1"] == {"sm90": False, "sm100": True, "sm103": True, "sm120": True}


def test_no_e4m3_conversion_is_fused_with_arithmetic_on_its_own_result(found):
    """ptxas 12.8 and 12.9 compile an addition to fresh e4m3 codes into a conversion that reads its result too early.

    Seen on an H200 as wrong scales of nvfp4_ds_mla:up from unaligned latents. In the machine code such a conversion
    merges with the shifted result of itself; a right one merges with nothing, or with the conversion beside it.
    """
    assert len(found["merged"]) >= 12
    assert {name: merged for name, merged in found["merged"].items() if merged} == {}


def test_what_is_compiled_is_what_a_launch_would_run(found):
    """The same PTX, to the letter, also for unaligned tensors, other index types and strides of 64 bits."""
    assert len(found["launched"]) >= 24
    assert [name for name, same in found["launched"].items() if not same] == []


# The compiler's view of a launch


def kernel(first_ptr, second_ptr, count, stride, WIDTH):
    pass


def source(first, second, count, stride):
    """The source of a launch of ``kernel``, whose count is not specialised."""
    function = JITFunction(kernel, do_not_specialize=["count"])
    return source_of(Launch(function, (1,), (first, second, count, stride), {"WIDTH": 64}))


def test_types_follow_tensors_and_sizes():
    data = torch.zeros(4, dtype=torch.bfloat16, device="meta")
    bytes_, index = data.to(torch.uint8), data.to(torch.int64)
    assert source(data, bytes_, 7, 577).signature == {
        "first_ptr": "*bf16",
        "second_ptr": "*u8",
        "count": "i32",
        "stride": "i32",
        "WIDTH": "constexpr",
    }
    large = source(index, data.float(), 2**31, -(2**31) - 1).signature
    assert (large["first_ptr"], large["second_ptr"]) == ("*i64", "*fp32")
    assert (large["count"], large["stride"]) == ("i64", "i64")
    edges = source(data.int(), None, 2**31 - 1, -(2**31)).signature
    assert (edges["first_ptr"], edges["count"], edges["stride"]) == ("*i32", "i32", "i32")


def test_none_and_one_become_constants_unless_not_specialised():
    data = torch.zeros(4, device="meta")
    one = source(data, None, 1, 1)
    assert one.constants == {(1,): None, (3,): 1, (4,): 64}
    assert (one.signature["second_ptr"], one.signature["stride"]) == ("constexpr", "constexpr")
    assert one.signature["count"] == "i32"


def test_multiples_of_16_are_known_to_be_unless_not_specialised():
    data = torch.zeros(64, dtype=torch.uint8)
    aligned = data[-data.data_ptr() % 16 :]
    known = [["tt.divisibility", 16]]
    assert source(aligned, aligned[8:], 32, 1152).attrs == {(0,): known, (3,): known}
    assert source(aligned[1:], aligned[16:], 32, 577).attrs == {(1,): known}


# Failures


def test_whatever_the_compiler_raises_becomes_one_sentence():
    launch = Launch(JITFunction(kernel), (1,), (None, None, 1, 1), {"NO_SUCH_PARAMETER": 1})
    with pytest.raises(CompileError, match=r"^Triton \S+ cannot compile this kernel for sm_90$") as caught:
        compile_launch(launch, Architecture(9, 0))
    assert caught.value.__cause__ is not None


def test_a_file_that_is_no_cubin_has_no_resource_usage():
    with pytest.raises(CompileError, match="cuobjdump gave no resource usage: "):
        resource_usage(b"no cubin")
