"""Who computes: one file per backend, each a context in which lm-eval finds a model whose cache is of one format.

sim      this process, transformers and the simulated cache: any format, any machine
vllm     an installed vLLM, a process of its own for every format
server   a running server for every format, asked over HTTP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dsmla_bench.kernels.formats import CacheFormat, Geometry

if TYPE_CHECKING:
    from dsmla_bench.evals.accuracy_rows import FidelityTableRow
    from dsmla_bench.evals.latents import LatentRow

BACKENDS = ("sim", "vllm", "server")


@dataclass(frozen=True)
class Variant:
    """One line of the results: a cache format, or a probe of one.

    label    what tables call it, unique in a run
    format   as ``get_format`` takes it; of a server the name that its user gave it
    only     "nope" or "rope": that part alone passes through the format, the other one stays bf16
    repeat   the baseline once more, in batches of another size: what the machine alone makes of a difference (A/A)
    """

    label: str
    format: str
    only: str | None = None
    repeat: bool = False

    @property
    def is_probe(self) -> bool:
        """Whether it is shown for understanding and judges no format."""
        return self.repeat or self.only is not None


class Backend(Protocol):
    """See the module docstring. Everything that raises does so with ValueError, in one sentence."""

    @property
    def name(self) -> str:
        """One of BACKENDS."""
        ...

    @property
    def geometry(self) -> Geometry | None:
        """The widths of the model's latents; None where they are not known here."""
        ...

    def cache_format(self, variant: Variant) -> CacheFormat | None:
        """What the cache stores; None where only its user knows."""
        ...

    def why_not(self, variant: Variant) -> str | None:
        """Why this variant cannot be computed here, in one sentence; None when it can. Loads nothing."""
        ...

    def check(self, variants: Sequence[Variant]) -> None:
        """Raise ValueError for what would fail only after hours. Asked when the tasks are there, before any scoring."""
        ...

    def facts(self, variant: Variant) -> dict[str, Any]:
        """What decides a score besides the task, as plain data: equal facts and tasks mean equal scores."""
        ...

    def open(self, variant: Variant) -> AbstractContextManager[Any]:
        """The model as lm-eval takes it (lm_eval.api.model.LM), for as long as the context lasts."""
        ...

    def fidelity(
        self, variants: Sequence[Variant], tasks: Mapping[str, Any], windows: int, tokens: int
    ) -> tuple[Sequence[FidelityTableRow], Sequence[LatentRow]] | None:
        """On ``windows`` windows of ``tokens`` tokens of the tasks' text; None where there are only scores."""
        ...


def other_batch_size(batch_size: int | str) -> int:
    """The batch size of an A/A repeat: half of the run's, 2 for 1, 1 for "auto"."""
    if isinstance(batch_size, str):
        return 1
    return max(1, batch_size // 2) if batch_size > 1 else 2
