"""What is quantized: synthetic latents of several kinds and files of real ones, read in blocks.

A source has ``tokens`` rows of ``kv_lora_rank + rope_dim`` values and gives any run of whole blocks in fp32, the latent
first; what the cache is given is that rounded to bf16. Block b of a synthetic source depends on (seed, kind, b) alone
and is always drawn on the CPU, so a CPU and a GPU see the same values, and memory is bounded by what is asked for.

Kinds, each of unit variance before sigma multiplies it, and the same draw for every sigma:

    normal               standard normal
    student_t            Student's t with 3 degrees of freedom: heavy tails
    outlier_channels     normal, one channel in 64 sixteen times as large (the same ones for all tokens)
    correlated_channels  16 common factors make up 90 % of every channel's variance
    token_scales         normal, each token times 2^(2 n) with n standard normal (not unit variance)
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from dsmla_bench.kernels.formats import Geometry

BLOCK_TOKENS = 4096
OUTLIER_SHARE, OUTLIER_FACTOR = 64, 16.0
FACTORS, COMMON_VARIANCE = 16, 0.9
TOKEN_OCTAVES = 2.0
SIGMAS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
"""The grid that ``normal`` is measured at when no sigma is asked for."""


class Source(Protocol):
    """Latents to quantize. ``sigma`` is None for a file."""

    @property
    def name(self) -> str:
        """What tables call it."""

    @property
    def kind(self) -> str:
        """A kind of the module docstring, or ``file``."""

    @property
    def sigma(self) -> float | None:
        """What a synthetic source is multiplied by."""

    @property
    def tokens(self) -> int:
        """Rows that it has."""

    @property
    def geometry(self) -> Geometry:
        """The widths of a row."""

    def block(self, number: int) -> torch.Tensor:
        """Rows [number · BLOCK_TOKENS, …) in fp32 on the CPU, at most BLOCK_TOKENS of them."""


@dataclass(frozen=True)
class Synthetic:
    """Latents drawn at random; see the module docstring."""

    kind: str
    sigma: float
    tokens: int
    seed: int = 0
    geometry: Geometry = Geometry()

    @property
    def name(self) -> str:
        """``normal sigma=0.01``."""
        return f"{self.kind} sigma={self.sigma:g}"

    def block(self, number: int) -> torch.Tensor:
        """Rows of one block, fp32 [<= BLOCK_TOKENS, width]."""
        count = min(BLOCK_TOKENS, self.tokens - number * BLOCK_TOKENS)
        # A last, short block is the beginning of a whole one: a longer run begins with a shorter one's values.
        return DRAW[self.kind](self.seed, number, _width(self.geometry))[:count] * self.sigma


def chunks(source: Source, chunk_tokens: int, workers: int) -> Iterator[tuple[int, torch.Tensor]]:
    """The source from the first row to the last: (first row, fp32 rows), about ``chunk_tokens`` at a time.

    ``workers`` threads read ahead, at most one chunk and a block for each of them.
    """
    blocks = math.ceil(source.tokens / BLOCK_TOKENS)
    per_chunk = max(1, chunk_tokens // BLOCK_TOKENS)
    with ThreadPoolExecutor(workers) as pool:
        ahead = [pool.submit(source.block, number) for number in range(min(blocks, per_chunk + workers))]
        for first in range(0, blocks, per_chunk):
            taken, ahead = ahead[:per_chunk], ahead[per_chunk:]
            rows = torch.cat([future.result() for future in taken])
            reached = first + len(taken) + len(ahead)
            ahead += [pool.submit(source.block, number) for number in range(reached, min(blocks, reached + per_chunk))]
            yield first * BLOCK_TOKENS, rows


def generator(*key: object) -> torch.Generator:
    """A CPU generator seeded by a hash of ``key``."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    made = torch.Generator()
    made.manual_seed(int.from_bytes(digest, "big") >> 1)
    return made


def _width(geometry: Geometry) -> int:
    return geometry.kv_lora_rank + geometry.rope_dim


def _normal(seed: int, block: int, width: int) -> torch.Tensor:
    return torch.randn(BLOCK_TOKENS, width, generator=generator(seed, "normal", block))


def _student_t(seed: int, block: int, width: int) -> torch.Tensor:
    """Bailey's polar method, t = sqrt(n (u^(-2/n) - 1)) cos(2 pi v) with n = 3, over its standard deviation sqrt(n)."""
    freedom = 3.0
    u, v = torch.rand(2, BLOCK_TOKENS, width, generator=generator(seed, "student_t", block)).unbind()
    u = 1 - u  # (0, 1]
    radius = (freedom * (u.pow(-2 / freedom) - 1)).sqrt()
    return radius * torch.cos(2 * math.pi * v) / math.sqrt(freedom)


def _outlier_channels(seed: int, block: int, width: int) -> torch.Tensor:
    return _normal(seed, block, width) * _channel_factors(seed, width)


@functools.lru_cache(maxsize=8)
def _channel_factors(seed: int, width: int) -> torch.Tensor:
    """1, and OUTLIER_FACTOR for one channel in OUTLIER_SHARE, over the root mean square of all."""
    factors = torch.ones(width)
    chosen = torch.randperm(width, generator=generator(seed, "outliers"))[: max(1, width // OUTLIER_SHARE)]
    factors[chosen] = OUTLIER_FACTOR
    return factors / factors.square().mean().sqrt()


def _correlated_channels(seed: int, block: int, width: int) -> torch.Tensor:
    common = torch.randn(BLOCK_TOKENS, FACTORS, generator=generator(seed, "factors", block)) @ _loadings(seed, width)
    return math.sqrt(COMMON_VARIANCE) * common + math.sqrt(1 - COMMON_VARIANCE) * _normal(seed, block, width)


@functools.lru_cache(maxsize=8)
def _loadings(seed: int, width: int) -> torch.Tensor:
    """[FACTORS, width] with columns of length 1."""
    return torch.nn.functional.normalize(torch.randn(FACTORS, width, generator=generator(seed, "loadings")), dim=0)


def _token_scales(seed: int, block: int, width: int) -> torch.Tensor:
    octaves = torch.randn(BLOCK_TOKENS, 1, generator=generator(seed, "token_scales", block))
    return _normal(seed, block, width) * torch.exp2(TOKEN_OCTAVES * octaves)


DRAW: dict[str, Callable[[int, int, int], torch.Tensor]] = {
    "normal": _normal,
    "student_t": _student_t,
    "outlier_channels": _outlier_channels,
    "correlated_channels": _correlated_channels,
    "token_scales": _token_scales,
}
"""Kind → (seed, block, width) → fp32 [BLOCK_TOKENS, width] of unit variance."""
KINDS = tuple(DRAW)
