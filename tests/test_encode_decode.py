"""encode = quantize and decode = dequantize, to the byte, for every format and revision.

Interpreted on a CPU and compiled on a CUDA device, over magnitudes from 1e-30 to 1e30, zeros, NaN, infinities,
denormals and ties, and over arbitrary bytes for the readers. There is no tolerance.
"""

import hypothesis
import numpy as np
import pytest
import torch
from caches import geometry_of, parts, poisoned_cache, rows_in
from hypothesis import strategies as st

from dsmla_bench.kernels.formats import CacheFormat, all_formats
from dsmla_bench.kernels.operations.gather import cp_gather_and_upconvert
from dsmla_bench.kernels.operations.pages import cache_of
from dsmla_bench.kernels.operations.write import concat_and_cache

EVERY_FORMAT = pytest.mark.parametrize("fmt", all_formats(), ids=lambda fmt: fmt.key)
SPECIALS = [
    0.0,
    -0.0,
    float("nan"),
    -float("nan"),
    float("inf"),
    -float("inf"),
    1e-40,
    -1e-40,
    3e38,
    448.0,
    464.0,
    6.0,
    5.0,
    0.25,
    2.0**-10,
]


def encode(fmt: CacheFormat, values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Rows that the Triton kernel writes for values bf16 [T, 576], T a multiple of the 4 tokens of a page."""
    cache = poisoned_cache(fmt, len(values) // 4, 4, values.device)
    concat_and_cache(fmt, *parts(fmt, values), cache, torch.arange(len(values), device=values.device), scale)
    return rows_in(fmt, cache)


def decode(fmt: CacheFormat, rows: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """bf16 [T, kv_lora_rank + rope_dim] that the Triton kernel reads from rows, four to a page."""
    geometry = geometry_of(fmt)
    width = geometry.kv_lora_rank + geometry.rope_dim
    workspace = torch.empty(len(rows), width, dtype=torch.bfloat16, device=rows.device)
    table = torch.arange(len(rows) // 4, dtype=torch.int32, device=rows.device)[None]
    starts = torch.zeros(1, dtype=torch.int32, device=rows.device)
    cache = cache_of(fmt, rows, 4, geometry)
    cp_gather_and_upconvert(fmt, cache, table, starts, workspace, scale=scale, geometry=geometry)
    return workspace


def assert_same_bytes(fmt: CacheFormat, values: torch.Tensor, scale: torch.Tensor | None) -> None:
    expected = fmt.quantize(*parts(fmt, values), scale)
    found = encode(fmt, values, scale)
    differing = int((found != expected).sum())
    assert differing == 0, f"encode: {differing} of {expected.numel()} bytes differ"


def assert_same_values(fmt: CacheFormat, rows: torch.Tensor, scale: torch.Tensor | None) -> None:
    expected = torch.cat(fmt.dequantize(rows, geometry_of(fmt), scale), dim=-1)
    found = decode(fmt, rows, scale)
    differing = int((found.view(torch.int16) != expected.view(torch.int16)).sum())
    assert differing == 0, f"decode: {differing} of {expected.numel()} values differ"


@st.composite
def tokens(draw: st.DrawFn) -> torch.Tensor:
    """bf16 [4, 576]: random bits scaled per tile of 16, with ties and special values strewn in."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = generator.standard_normal((4, 36, 16)) * 10.0 ** draw(st.floats(-30, 30))
    values *= 2.0 ** generator.integers(-draw(st.integers(0, 12)), 1, (4, 36, 1))
    if draw(st.booleans()):  # halves of small integers: full of ties once divided by a power of two
        values = generator.integers(-96, 97, (4, 36, 16)) / 16 * 2.0 ** draw(st.integers(-14, 8))
    if draw(st.booleans()):
        strewn = generator.random(values.shape) < draw(st.sampled_from([0.002, 0.05, 0.9]))
        values[strewn] = generator.choice(draw(st.lists(st.sampled_from(SPECIALS), min_size=1)), strewn.sum())
    return torch.from_numpy(values.reshape(4, 576)).to(torch.bfloat16)


@EVERY_FORMAT
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(values=tokens(), scale=st.sampled_from([None, 1.0, 0.3, 600 / 448, 2.0**-20]))
def test_encode_equals_quantize_and_its_rows_decode_alike(fmt, device, values, scale):
    factor = None if scale is None else torch.tensor([scale], device=device)
    values = values.to(device)
    assert_same_bytes(fmt, values, factor)
    assert_same_values(fmt, fmt.quantize(*parts(fmt, values), factor), factor)


@EVERY_FORMAT
@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([None, 0.3, 1e30]))
def test_decode_equals_dequantize_on_arbitrary_bytes(fmt, device, seed, scale):
    """A reader meets whatever lies in the cache: NaN codes, infinite or denormal scales, padding."""
    size = (4, fmt.row_bytes(geometry_of(fmt)))
    rows = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert_same_values(fmt, rows.to(device), None if scale is None else torch.tensor([scale], device=device))


@EVERY_FORMAT
@pytest.mark.parametrize("spread", ["ordered", "mixed"])
def test_encode_equals_quantize_on_every_bf16_value(fmt, device, spread):
    """All 65 536 bit patterns: neighbours in one tile, and magnitudes mixed so that most meet a foreign scale."""
    bits = torch.arange(65536, dtype=torch.int32)
    if spread == "mixed":
        bits = bits[torch.randperm(65536, generator=torch.Generator().manual_seed(1))]
    rank = geometry_of(
        fmt
    ).kv_lora_rank  # 512 · 128 values; where only 448 columns are used, 448 · 148, 768 of them zero
    latent = torch.zeros(65536 if rank == 512 else 148 * rank, dtype=torch.bfloat16)
    latent[:65536] = bits.to(torch.int16).view(torch.bfloat16)
    latent = latent.view(-1, rank)
    values = torch.zeros(len(latent), 576, dtype=torch.bfloat16)
    values[:, :rank], values[:, 512:] = latent, latent[:, 100:164]
    values = values.to(device)
    assert_same_bytes(fmt, values, torch.tensor([0.3], device=device))
