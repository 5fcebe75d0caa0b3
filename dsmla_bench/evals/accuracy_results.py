"""What an accuracy run found, judged against its baseline and written as the tables of ``accuracy_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsmla_bench.evals.accuracy_rows import (
    DocumentRow,
    FidelityTableRow,
    ScoreRow,
    VariantRow,
    document_rows,
    judged_frame,
    score_rows,
)
from dsmla_bench.evals.judging import Margins, judge
from dsmla_bench.evals.scores import JudgedRow, TaskScores
from dsmla_bench.results import Run, typed_frame

if TYPE_CHECKING:
    from dsmla_bench.evals.latents import LatentRow


@dataclass
class Results:
    """Scores by the label of their variant, and what else was measured."""

    baseline: str
    variants: Sequence[VariantRow]
    scores: dict[str, list[TaskScores]] = field(default_factory=dict)
    fidelity: Sequence[FidelityTableRow] = ()
    latents: Sequence[LatentRow] = ()

    def judged(self, margins: Margins) -> list[JudgedRow]:
        """Every variant that has scores against the baseline, where that has some."""
        baseline, rows = self.scores.get(self.baseline, []), []
        for variant in self.variants:
            found = self.scores.get(variant.format, [])
            if found and baseline and variant.format != self.baseline:
                rows += judge(baseline, found, margins)
        return rows

    def write(self, run: Run, margins: Margins) -> None:
        """Write every table that has rows, and those that every accuracy run has."""
        everything = [scores for label in self.scores.values() for scores in label]
        scored = [row for scores in everything for row in score_rows(scores)]
        documents = [row for scores in everything for row in document_rows(scores)]
        run.write_table("variants", typed_frame(VariantRow, self.variants))
        run.write_table("scores", typed_frame(ScoreRow, scored))
        run.write_table("documents", typed_frame(DocumentRow, documents))
        run.write_table("judged", judged_frame(self.judged(margins)))
        if self.fidelity:
            run.write_table("fidelity", typed_frame(FidelityTableRow, self.fidelity))
        if self.latents:
            run.write_table("latents", typed_frame(type(self.latents[0]), self.latents))
