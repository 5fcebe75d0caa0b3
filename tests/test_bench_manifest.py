"""What a run says of the machine that it was measured on, where CUDA and NVML are scripted."""

import hashlib
from types import SimpleNamespace

import fake_nvml
import pytest
import torch

from dsmla_bench.bench import manifest
from dsmla_bench.kernels.arch import Architecture

GPUS = {
    0: SimpleNamespace(name="NVIDIA H200", major=9, minor=0, uuid="0a", multi_processor_count=132),
    1: SimpleNamespace(name="NVIDIA B200", major=10, minor=0, uuid="1b", multi_processor_count=148),
}


@pytest.fixture(autouse=True)
def _two_gpus(monkeypatch):
    for gpu in GPUS.values():
        gpu.L2_cache_size, gpu.total_memory = 60 << 20, 140 << 30
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    monkeypatch.setattr(torch.cuda, "get_device_properties", GPUS.get)


def test_every_device_is_found_with_its_architecture_and_the_first_of_one_by_it():
    found = manifest.find_devices()
    assert [(gpu.index, gpu.name, gpu.uuid, gpu.arch) for gpu in found] == [
        (0, "NVIDIA H200", "0a", "sm90"),
        (1, "NVIDIA B200", "1b", "sm100"),
    ]
    assert manifest.find_device() == (0, Architecture.parse("sm90"))
    assert manifest.find_device(Architecture.parse("sm100")) == (1, Architecture.parse("sm100"))
    assert manifest.find_device(Architecture.parse("sm120")) is None


def test_a_device_is_described_by_cuda_and_by_nvml_where_there_is_one(monkeypatch):
    fake_nvml.install(monkeypatch, "GPU-1b", power=1_000_000)
    found = manifest.describe_device(1)
    assert (found["arch"], found["sm_count"], found["l2_bytes"], found["power_limit_w"]) == (
        "sm100",
        148,
        60 << 20,
        1e3,
    )
    fake_nvml.install(monkeypatch, missing=True)
    found = manifest.describe_device(1)
    assert (found["name"], found["memory_bytes"], found["driver"]) == ("NVIDIA B200", 140 << 30, None)
    assert found["nvml"] == "not available"


def test_a_library_is_known_by_its_content_and_one_that_cannot_be_read_by_none(tmp_path):
    file = tmp_path / "library.so"
    file.write_bytes(b"code")
    assert manifest.file_sha256(file) == hashlib.sha256(b"code").hexdigest()
    assert manifest.file_sha256(tmp_path / "none.so") is None


def test_the_commit_is_told_with_its_changes_and_an_installed_package_has_none(tmp_path, monkeypatch):
    package = tmp_path / "dsmla_bench" / "bench" / "manifest.py"
    monkeypatch.setattr(manifest, "__file__", str(package))
    monkeypatch.setattr(manifest, "_output", lambda command, folder: {"rev-parse": "abc", "status": " M a"}[command[1]])
    assert manifest.describe()["git"] is None
    (tmp_path / ".git").mkdir()
    assert manifest.describe()["git"] == {"commit": "abc", "dirty": True}


def test_a_tool_that_is_missing_or_fails_says_nothing(tmp_path):
    assert manifest._output(["no-such-tool"]) is None
    assert manifest._output(["false"]) is None
    assert manifest._output(["pwd"], tmp_path) == str(tmp_path)
