"""RoPE, the rotary position embedding, in torch (the definition) and in Triton (the same bits).

A table of ``2 n`` columns holds n cosines and then n sines for every position. Pair i of a vector is rotated by them:

    first · cos - second · sin,  second · cos + first · sin

in fp32, each product rounded, none fused into the sum. Pairs are ``interleaved`` (values 2 i and 2 i + 1: DeepSeek's
k_pe and q_pe, GLM's indexer) or, as in GPT-NeoX, of halves (values i and n + i: DeepSeek-V3.2's indexer). A vector
rotated in the wrong way has the right length and a wrong score.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels import checks
from dsmla_bench.kernels.formats.numerics import within

TABLE_TYPES = (torch.float32, torch.bfloat16)


def rotate(values: torch.Tensor, cos_sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """values fp32 [..., 2 n], cos_sin [..., 2 n], the table's row for each vector → fp32 [..., 2 n]."""
    cos, sin = cos_sin.float().chunk(2, dim=-1)
    pairs = values.unflatten(-1, (-1, 2)) if interleaved else values.unflatten(-1, (2, -1)).transpose(-1, -2)
    first, second = pairs.unbind(-1)
    rotated = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.flatten(-2) if interleaved else rotated.transpose(-1, -2).flatten(-2)


def random_table(positions: int, width: int, device: torch.device) -> torch.Tensor:
    """The table of base 10000 for ``positions``, bf16 [positions, width], as models in bf16 keep it.

    On the meta device it has no values, and none are computed.
    """
    if device.type == "meta":
        return torch.empty(positions, width, dtype=torch.bfloat16, device=device)
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(torch.bfloat16).to(device)


def check_table(name: str, table: torch.Tensor, width: int) -> None:
    """A table of cosines and sines [positions, width] in fp32 or bf16, rows may be strided. Raises ValueError."""
    checks.check_matrix(name, table, table.dtype if table.dtype in TABLE_TYPES else TABLE_TYPES[0], width)


def check_positions(positions: torch.Tensor, table: torch.Tensor) -> None:
    """No position lies outside the table. Reads the values. Raises ValueError."""
    if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < len(table):
        found = f"found {int(positions.min())} to {int(positions.max())}"
        raise ValueError(f"positions must be from 0 to {len(table) - 1}, {found}")


@triton.jit
def load_cos_sin(table_ptr, table_stride, position, mask, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    """The cosines and sines of positions [T], fp32 [T, BLOCK] each; zeros past PAIRS and where the mask is false."""
    pair = tl.arange(0, BLOCK)
    columns = within(mask, pair, PAIRS)
    row_ptr = table_ptr + (position.to(tl.int64) * table_stride)[:, None]
    cos = tl.load(row_ptr + pair, columns, other=0.0).to(tl.float32)
    sin = tl.load(row_ptr + PAIRS + pair, columns, other=0.0).to(tl.float32)
    return cos, sin


@triton.jit
def rotate_pairs(first, second, cos, sin):
    """The rotated pairs, all fp32 [T, n]."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def rotate_interleaved(values, cos, sin):
    """fp32 [T, 2 n] with pairs of neighbours, cos and sin [T, n] → fp32 [T, 2 n]."""
    first, second = tl.split(tl.reshape(values, (values.shape[0], values.shape[1] // 2, 2)))
    first, second = rotate_pairs(first, second, cos, sin)
    return tl.reshape(tl.join(first, second), (values.shape[0], values.shape[1]))
