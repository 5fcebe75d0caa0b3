"""Launch configurations: what an operation's kernel can be launched with besides what its table says.

The table is a small function of the operation's file, by tokens and architecture, and nothing chooses at run time.
``dsmla-bench tune`` measures the candidates beside it and says whether it still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsmla_bench.kernels.formats import CacheFormat
from dsmla_bench.kernels.launch import Launch

if TYPE_CHECKING:
    from dsmla_bench.kernels.operations.base import Shape


@dataclass(frozen=True)
class Tuning:
    """The other ways to launch an operation. A configuration changes its time and never its result.

    plan        (format, inputs, arch, configuration) -> the launch in it, None when there is nothing to do
    candidates  (shape, arch) -> the configurations worth measuring, frozen dataclasses of numbers
    """

    plan: Callable[[CacheFormat, Any, int, Any], Launch | None]
    candidates: Callable[[Shape, int], Sequence[Any]]


@dataclass(frozen=True)
class TokenBlock:
    """The configuration of a kernel whose programs differ in their tokens alone: tokens and warps of one program."""

    block_tokens: int
    num_warps: int


TOKEN_BLOCKS = tuple(
    TokenBlock(*numbers)
    for numbers in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 2), (8, 4), (16, 4))
)
"""From one token spread over four warps to sixteen tokens in one program."""
