"""What is quantized: the same for a seed, whatever is asked for around it; and files, or why they cannot be."""

import math
import sys
import types

import numpy as np
import pytest
import torch

from dsmla_bench.evals.data import BLOCK_TOKENS, KINDS, Synthetic, chunks
from dsmla_bench.evals.data_files import open_file


def read(source, chunk_tokens=BLOCK_TOKENS, workers=1):
    found = list(chunks(source, chunk_tokens, workers))
    assert [start for start, _ in found] == [sum(len(rows) for _, rows in found[:i]) for i in range(len(found))]
    return torch.cat([rows for _, rows in found])


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_the_same_for_a_seed_at_any_length_chunk_and_sigma(kind):
    source = Synthetic(kind, 1.0, BLOCK_TOKENS + 100, seed=3)
    values = read(source)
    assert values.shape == (BLOCK_TOKENS + 100, 576)
    assert torch.equal(values, read(source, 4 * BLOCK_TOKENS, workers=3))
    assert torch.equal(values[:50], read(Synthetic(kind, 1.0, 50, seed=3)))
    assert torch.equal(values * 0.25, read(Synthetic(kind, 0.25, BLOCK_TOKENS + 100, seed=3)))
    assert not torch.equal(values[:50], read(Synthetic(kind, 1.0, 50, seed=4)))
    if kind != "token_scales":
        assert float(values.square().mean()) == pytest.approx(1.0, abs=0.06 if kind == "student_t" else 0.02)


def test_kinds_are_what_they_are_called():
    tails = read(Synthetic("student_t", 1.0, 4096))
    assert float(tails.abs().max()) > 20
    outliers = read(Synthetic("outlier_channels", 1.0, 4096)).square().mean(0).sqrt()
    assert int((outliers > 8 * outliers.median()).sum()) == 9
    correlated = read(Synthetic("correlated_channels", 1.0, 4096))[:, :200]
    between = torch.corrcoef(correlated.T)
    assert float(between.triu(1).abs().max()) > 0.5
    spread = read(Synthetic("token_scales", 1.0, 4096)).square().mean(1).log2() / 2
    assert float(spread.std()) == pytest.approx(2.0, abs=0.1)


def test_reading_ahead_keeps_memory_bounded():
    held, most = 0, 0

    class Counting:
        tokens = 20 * BLOCK_TOKENS

        def block(self, number):
            nonlocal held, most
            held += 1
            most = max(most, held)
            return torch.zeros(BLOCK_TOKENS, 1)

    for _ in chunks(Counting(), 2 * BLOCK_TOKENS, 3):
        held -= 2
    assert most <= 2 * 2 + 3


def save(path, name, value):
    file = path / name
    if name.endswith(".npy"):
        np.save(file, value)
    else:
        torch.save(value, file)
    return file


def latents(tokens=5, dtype=torch.float32):
    return torch.arange(tokens * 576, dtype=torch.float32).reshape(tokens, 576).to(dtype)


def test_files_give_their_values_whole_or_in_two_arrays(tmp_path):
    both = latents(dtype=torch.bfloat16)
    expected = both.float()
    assert torch.equal(read(open_file(save(tmp_path, "a.pt", both))), expected)
    parts = {"kv_c": both[:, :512].clone(), "k_pe": both[:, 512:].clone(), "positions": torch.arange(5)}
    assert torch.equal(read(open_file(save(tmp_path, "b.pt", parts))), expected)
    assert torch.equal(read(open_file(save(tmp_path, "c.npy", expected.numpy()))), expected)
    assert torch.equal(read(open_file(save(tmp_path, "d.npy", expected.double().numpy()), tokens=2)), expected[:2])


REFUSED = {
    "empty.npy": (b"", "is empty"),
    "text.npy": (b"hello", "cannot be read as .npy"),
    "text.pt": (b"hello", "cannot be read as .pt"),
    "notes.txt": (b"hello", "is no .npy, .pt or .safetensors file"),
    "shape.npy": (np.zeros((4, 575), np.float32), "must be [T, 576] for 512+64, found [4, 575]"),
    "rank.npy": (np.zeros(576, np.float32), "found [576]"),
    "integers.npy": (np.zeros((4, 576), np.int32), "expected float16, float32 or float64"),
    "objects.npy": (np.array([{}], dtype=object), "cannot be read as .npy"),
    "integers.pt": (torch.zeros(4, 576, dtype=torch.int32), "must hold floating-point values, found torch.int32"),
    "names.pt": ({"keys": torch.zeros(1), "values": torch.zeros(1)}, "holds keys, values; expected one array"),
    "code.pt": ({"kv_c": types.SimpleNamespace()}, "cannot be read as .pt"),
    "lengths.pt": ({"kv_c": torch.ones(3, 512), "k_pe": torch.ones(4, 64)}, "as many tokens each, found 3 and 4"),
    "rope.pt": ({"kv_c": torch.ones(3, 512), "k_pe": torch.ones(3, 32)}, "k_pe must be [T, 64]"),
    "none.npy": (np.zeros((0, 576), np.float32), "holds no tokens"),
    "nan.npy": (np.full((3, 576), math.nan, np.float32), "holds no finite value in 3 tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_latents_is_refused_in_a_sentence(tmp_path, name):
    content, sentence = REFUSED[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        save(tmp_path, name, content)
    with pytest.raises(ValueError, match=r"^\S") as refused:
        open_file(tmp_path / name)
    assert sentence in str(refused.value)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_and_a_missing_package_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no such file"):
        open_file(tmp_path / "absent.pt")
    (tmp_path / "a.safetensors").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ValueError, match=r"pip install 'dsmla-bench\[accuracy\]'"):
        open_file(tmp_path / "a.safetensors")


def test_safetensors_are_read_by_their_package(tmp_path, monkeypatch):
    package = types.ModuleType("safetensors.torch")
    package.load_file = lambda path: {"latents": latents()}
    monkeypatch.setitem(sys.modules, "safetensors.torch", package)
    (tmp_path / "a.safetensors").write_bytes(b"x")
    assert torch.equal(read(open_file(tmp_path / "a.safetensors")), latents())
