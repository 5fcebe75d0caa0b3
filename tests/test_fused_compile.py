"""The fused kernels compile for every architecture in their largest shape and widest variant, and spill nothing."""

import pytest
from builders import case

from dsmla_bench.bench.worker import Worker, WorkerConfig

LARGEST = (
    {"operation": "fused_norm_rope", "format": "nvfp4_ds_mla", "tokens": 65536, "variant": "indexer+kv"},
    {"operation": "fused_norm_rope", "format": "fp8_ds_mla", "tokens": 1, "variant": "no-indexer"},
    {"operation": "fused_q", "format": "fp8", "tokens": 4096, "heads": 128, "variant": "indexer"},
)


@pytest.fixture(scope="module")
def compiler():
    """A worker process that compiles."""
    worker = Worker(WorkerConfig("compile"))
    yield worker
    worker.stop()


@pytest.mark.parametrize("arch", ["sm90", "sm100", "sm103", "sm120"])
def test_fused_kernels_compile_without_spilling(compiler, arch):
    for axes in LARGEST:
        found = compiler.measure(case(arch=arch, **axes))
        assert found.status == "compiled", f"{found.case}: {found.reason}"
        assert found.facts["spilled_bytes"] == 0
        assert found.facts["registers"] <= 128
