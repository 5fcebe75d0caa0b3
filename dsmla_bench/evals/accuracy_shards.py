"""The part of a spread accuracy run that computes: one process with one model, asked for one shard after another.

A shard is one task by one variant, or the fidelity pass. Each answer comes with the key of its cell
(``accuracy_cells``), so that whoever asked sees whether this process computes the very same thing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from dsmla_bench.evals.accuracy import (
    cell_keys,
    fidelity_key,
    measured_fidelity,
    out_of_memory_in_words,
    prepare,
    score_task,
)
from dsmla_bench.evals.accuracy_plan import AccuracyPlan
from dsmla_bench.evals.backends import Variant


class ShardMaker:
    """Computes shards of a plan. A variant stays open until another one is asked for."""

    def __init__(self, plan: AccuracyPlan) -> None:
        self._session = prepare(plan)
        self._open: Variant | None = None
        self._closing = contextlib.ExitStack()
        self._lm: Any = None

    def scores(self, label: str, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Key and content of the cell of a task by the variant called ``label``."""
        variant = next(variant for variant in self._session.variants if variant.label == label)
        key = cell_keys(self._session, variant)[task]
        with out_of_memory_in_words():
            if variant != self._open:
                self._closing.close()
                self._lm = self._closing.enter_context(self._session.backend.open(variant))
                self._open = variant
            return key, dataclasses.asdict(score_task(self._session, variant, self._lm, task))

    def fidelity(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Key and content of the cell of the fidelity pass; None for a backend that has none."""
        self._closing.close()
        self._open = None
        return fidelity_key(self._session), measured_fidelity(self._session)
