"""The concepts of a task score: a document's score, a task's scores of one format, and the row that judges a format.

Pure data: no torch, no files, no statistics. An evaluation, of ours or read from lm-eval's own output, yields one
``TaskScores`` per format and task; ``judging.judge`` turns those of a baseline and of a format into ``JudgedRow``s,
which tables, plots and exit codes read. Everything is JSON-able; undefined is None.

A metric's score follows from its documents' values v and weights w (``Aggregate.aggregation``):

    mean      sum v / sum w; w is 1 for accuracies, and the bytes of a document for bits per byte (v its bits)
    exp_mean  exp(sum v / sum w): perplexities, v the negative log-likelihood in nats
    other     not from values of single documents (a corpus BLEU): such a metric cannot be paired

Scores, deltas, intervals and margins are in the metric's own unit, so an accuracy is a share of 1 and its delta of one
point is 0.01; those of ``exp_mean`` compare as natural logarithms. A delta is the format minus the baseline.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from dsmla_bench.evals.json_records import record

BASELINE = "bf16"
"""The format that the others are held against, where it was scored."""
AGGREGATIONS = ("mean", "exp_mean", "other")
VERDICTS = ("equivalent", "non-inferior", "worse", "inconclusive", "not significant", "not comparable")
"""What a row can say: the first four of paired scores; ``not significant`` of unpaired ones; ``not comparable`` where
recipes or documents differ. ``judging`` defines them."""


@dataclass(frozen=True)
class DocumentScore:
    """What one document scored by one metric.

    doc_id                               the document's number in its task
    doc_hash, prompt_hash, target_hash   of the document, of what the model was shown, of what was expected
    value, weight                        see the module docstring; value None where lm-eval has none
    cluster                              documents with the same one are not independent (one context, one question)
    answer                               the chosen option or the extracted answer, to count answers that changed
    """

    task: str
    filter: str
    metric: str
    doc_id: int
    value: float | None
    weight: float = 1.0
    doc_hash: str | None = None
    prompt_hash: str | None = None
    target_hash: str | None = None
    cluster: str | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Aggregate:
    """A task's score by one filter and metric. Raises ValueError for another ``aggregation``.

    stderr            the standard error of ``score``
    documents         how many documents it rests on; None where unknown
    aggregation       one of AGGREGATIONS
    higher_is_better  None where nobody says: no verdict then
    bounded           a document's value lies in [0, 1]: accuracies, whose margin is in points
    """

    filter: str
    metric: str
    score: float | None
    stderr: float | None
    documents: int | None
    aggregation: str
    higher_is_better: bool | None
    bounded: bool

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation {self.aggregation!r} is none of {', '.join(AGGREGATIONS)}")


@dataclass(frozen=True)
class Recipe:
    """How a task was asked. None is unknown, and never said to differ; what is known to be unset has its own value.

    lm_eval_version, task_version   the harness, and the version of the task's definition
    task_hash                       of all documents with their prompts and targets
    num_fewshot, fewshot_seed       examples in the prompt, and what drew them (None without examples)
    limit                           "all", or as many documents, or that share of them
    filters, repeats                how an answer is extracted, as sorted JSON; answers for each document
    chat_template_sha, system_instruction_sha, fewshot_as_multiturn   how a chat model was addressed; "none" without
    generation                      decoding settings, as sorted JSON
    tokenizer, model, model_hash    names; the hash of the weights, or the commit of a repository of them
    backend                         who computed: "sim", "server", "hf", "vllm" …
    dtype, max_length               of the model's arithmetic; its longest context in tokens
    """

    lm_eval_version: str | None = None
    task_version: str | None = None
    task_hash: str | None = None
    num_fewshot: int | None = None
    fewshot_seed: int | None = None
    limit: str | None = None
    filters: str | None = None
    repeats: int | None = None
    chat_template_sha: str | None = None
    system_instruction_sha: str | None = None
    fewshot_as_multiturn: bool | None = None
    generation: str | None = None
    tokenizer: str | None = None
    model: str | None = None
    model_hash: str | None = None
    backend: str | None = None
    dtype: str | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class TaskScores:
    """All scores of one task by one format.

    format      what the KV cache stores; the name that tables show
    documents   () where only aggregates are known: nothing can be paired then
    notes       what a reader must know of these scores, a sentence each
    """

    format: str
    task: str
    recipe: Recipe
    aggregates: tuple[Aggregate, ...]
    documents: tuple[DocumentScore, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """One line of JSON, read back by ``from_json``. Raises ValueError where a number is not finite."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> TaskScores:
        """The scores that ``to_json`` wrote. Raises ValueError when the text is not such: files are not trusted."""
        try:
            return record(cls, json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not the scores of a task: {error}") from error


@dataclass(frozen=True)
class JudgedRow:
    """What a format costs by one task, filter and metric, against the baseline. Undefined is None.

    Raises ValueError for another ``verdict``.

    paired                  whether documents were paired; else the scores are compared as if of different documents
    documents, clusters     how many the figures rest on
    baseline_score, score   of the documents compared
    delta, delta_lo, delta_hi   score minus baseline_score and its 95 % interval
    method                  "tango", "bootstrap-t", "student-t" or "normal": how the interval was made
    p, p_holm               two-sided, of no difference; the latter by Holm over all rows of this format
    margin                  the loss that does not matter
    verdict                 one of VERDICTS
    needed                  of an inconclusive row: documents that would settle it with 80 % power
    resolution              the smallest loss that this many documents show with 80 % power (minimum detectable effect)
    lost, gained            documents right by the baseline only, by the format only; of values 0 and 1
    answers_changed         documents whose answer changed, right or wrong, where answers are known
    aggregation, higher_is_better, bounded   as in ``Aggregate``
    notes                   what a reader must know of this row, a sentence each
    """

    task: str
    filter: str
    metric: str
    format: str
    baseline: str
    verdict: str
    paired: bool
    aggregation: str
    higher_is_better: bool | None
    bounded: bool
    documents: int | None = None
    clusters: int | None = None
    baseline_score: float | None = None
    score: float | None = None
    delta: float | None = None
    delta_lo: float | None = None
    delta_hi: float | None = None
    method: str | None = None
    p: float | None = None
    p_holm: float | None = None
    margin: float | None = None
    needed: int | None = None
    resolution: float | None = None
    lost: int | None = None
    gained: int | None = None
    answers_changed: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r} is none of {', '.join(VERDICTS)}")
