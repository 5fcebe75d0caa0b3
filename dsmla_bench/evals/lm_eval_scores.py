"""lm-eval's results and samples, of a run in process or read from disk, as ``TaskScores``. Pure.

``results`` has the shape of lm-eval's results_*.json, which is also what ``simple_evaluate`` returns; ``samples`` maps
a task to its documents, each as in samples_*.jsonl, where a document occurs once for every filter. Checked against
lm-eval 0.4.13; the data is not trusted. Of a document, ``doc``, ``arguments`` and ``resps`` are left alone, but for a
key ``cluster`` of ``doc``, which names what it shares with others.

What lm-eval does not give, or gives wrongly, is computed: standard errors come from the documents where there are any,
which also covers bits per byte and perplexities, for which lm-eval has none. A recorded one that contradicts its score
is replaced, and a note says so. "N/A", NaN, infinities and what is beyond 1e100 are None.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsmla_bench.evals.lm_eval_fields import is_list, mapping, number, part, text, whole
from dsmla_bench.evals.lm_eval_recipe import recipe_of
from dsmla_bench.evals.paired_statistics import share_error, standard_error, totals
from dsmla_bench.evals.scores import Aggregate, DocumentScore, TaskScores

PERPLEXITIES = ("word_perplexity", "byte_perplexity", "perplexity")
BITS = "bits_per_byte"
SHARES = ("acc", "acc_norm", "acc_norm_bytes", "acc_mutual_info", "acc_all", "exact_match", "em", "pass@1", "pass_at_1")
"""Metrics that are the share of right answers, known by name where documents are missing."""
TOLERANCE = 0.02
"""Relative: how far a recorded standard error may be from the computed one; lm-eval bootstraps some of them."""
_ANSWER_LETTERS = 64


@dataclass(frozen=True)
class _Metric:
    """A score as lm-eval records it."""

    filter: str
    name: str
    score: float | None
    stderr: float | None
    higher_is_better: bool | None


def task_scores(
    results: Mapping[str, Any], samples: Mapping[str, Iterable[Mapping[str, Any]]], format: str
) -> list[TaskScores]:
    """The scores of every task, under the name ``format``; groups are left out, their tasks are there.

    Each iterable of ``samples`` is walked once. Raises ValueError, in one sentence, for what lm-eval does not write.
    """
    found = mapping(results.get("results"), "results")
    groups = mapping(results.get("groups") or {}, "groups")
    tasks = {name: mapping(row, f"results of {name}") for name, row in found.items() if name not in groups}
    if not tasks:
        raise ValueError("the results hold no task")
    return [_task(results, str(name), row, samples.get(name, ()), format) for name, row in tasks.items()]


def _task(
    results: Mapping[str, Any], task: str, row: Mapping[str, Any], samples: Iterable[Mapping[str, Any]], format: str
) -> TaskScores:
    metrics = _metrics(results, task, row)
    by_metric: dict[tuple[str, str], list[DocumentScore]] = {(found.filter, found.name): [] for found in metrics}
    kind = str(part(results, "configs", task).get("output_type"))
    for sample in samples:
        for document in _documents(task, sample, by_metric, kind):
            by_metric[document.filter, document.metric].append(document)
    expected = _count(results, task, row)
    aggregates, documents, notes = [], [], []
    for metric in metrics:
        of_metric = by_metric[metric.filter, metric.name]
        aggregate, said = _aggregate(metric, of_metric, expected)
        aggregates.append(aggregate)
        documents += of_metric if aggregate.aggregation != "other" else []
        notes += said
    return TaskScores(format, task, recipe_of(results, task), tuple(aggregates), tuple(documents), tuple(notes))


def _metrics(results: Mapping[str, Any], task: str, row: Mapping[str, Any]) -> list[_Metric]:
    """The columns "metric,filter" of a task, each with its standard error."""
    better = part(results, "higher_is_better", task)
    found = []
    for key, value in row.items():
        name, comma, filter = str(key).partition(",")
        if not comma or name.endswith("_stderr"):
            continue
        stderr = row.get(f"{name}_stderr,{filter}")
        direction = better.get(name)
        found.append(
            _Metric(
                filter,
                name,
                number(value, f"{task}: {key}"),
                number(stderr, f"{task}: {name}_stderr,{filter}"),
                direction if isinstance(direction, bool) else None,
            )
        )
    return found


def _count(results: Mapping[str, Any], task: str, row: Mapping[str, Any]) -> int | None:
    """How many documents lm-eval says that it asked."""
    count = whole(part(results, "n-samples", task).get("effective", row.get("sample_len")))
    return count if count and count > 0 else None


def _documents(
    task: str, sample: Mapping[str, Any], metrics: Iterable[tuple[str, str]], kind: str
) -> Iterator[DocumentScore]:
    """What a sample scored by each metric of its filter that has a value for a single document."""
    identity = mapping(sample, f"a sample of {task}")
    doc_id, filter = whole(identity.get("doc_id")), identity.get("filter", "none")
    if doc_id is None:
        raise ValueError(f"a sample of {task} must have a whole doc_id, found {identity.get('doc_id')!r:.60}")
    doc = identity.get("doc")
    cluster = doc.get("cluster") if isinstance(doc, Mapping) else None
    for its_filter, name in metrics:
        if its_filter != filter or name not in identity:
            continue
        scored = _value(name, identity[name])
        if scored is not None:
            yield DocumentScore(
                task=task,
                filter=filter,
                metric=name,
                doc_id=doc_id,
                value=scored[0],
                weight=scored[1],
                doc_hash=text(identity.get("doc_hash")),
                prompt_hash=text(identity.get("prompt_hash")),
                target_hash=text(identity.get("target_hash")),
                cluster=None if cluster is None else str(cluster),
                answer=_answer(identity.get("filtered_resps"), kind),
            )


def _value(metric: str, recorded: object) -> tuple[float | None, float] | None:
    """Value and weight of a document, in the terms of ``scores``; None where the metric has none for one document."""
    if isinstance(recorded, (bool, np.bool_)):
        return float(recorded), 1.0
    if metric in PERPLEXITIES or metric == BITS:
        pair = recorded if is_list(recorded) else (recorded, 1)
        try:
            log_likelihood, weight = (number(part, metric) for part in pair)
        except ValueError:
            return None
        if log_likelihood is None or weight is None or weight <= 0:
            return None, 1.0
        return (-log_likelihood / math.log(2) if metric == BITS else -log_likelihood), weight
    try:
        return number(recorded, metric), 1.0
    except ValueError:
        return None


def _answer(responses: object, kind: str) -> str | None:
    """The option of the highest log-likelihood, or the extracted text, a long one by its hash; None for other tasks."""
    if not is_list(responses) or not responses:
        return None
    if kind == "multiple_choice":
        try:
            likelihoods = [float(response[0]) for response in responses]
        except (TypeError, ValueError, LookupError, OverflowError):
            return None
        return str(likelihoods.index(max(likelihoods)))
    if kind != "generate_until" or not isinstance(responses[0], str):
        return None
    text = responses[0]
    if len(text) <= _ANSWER_LETTERS:
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _aggregate(
    metric: _Metric, documents: Sequence[DocumentScore], expected: int | None
) -> tuple[Aggregate, list[str]]:
    """A metric's score with its standard error, and what has to be said of it."""
    name = f"{metric.name},{metric.filter}"
    aggregation = "exp_mean" if metric.name in PERPLEXITIES else "mean"
    known = [document for document in documents if document.value is not None]
    notes = []
    if known and expected is not None and len(documents) != expected:
        notes.append(f"{name}: the samples hold {len(documents)} documents, the results speak of {expected}")
    elif known and not _agrees(metric, known, aggregation):
        notes.append(f"{name}: its documents do not average to the score, so it is not paired")
        aggregation, known = "other", []
    bounded = _is_bounded(metric, known)
    stderr = _error_of(metric, known, aggregation) if known else metric.stderr
    contradicted = _contradiction(metric, stderr, bounded, expected, bool(known) and aggregation == "mean")
    if contradicted is not None:
        stderr = contradicted
        notes.append(
            f"{name}: the recorded standard error {metric.stderr:.4g} contradicts the score {metric.score:.4g}; "
            f"recomputed as {stderr:.4g}"
        )
    count = len(known) or expected
    return Aggregate(
        metric.filter, metric.name, metric.score, stderr, count, aggregation, metric.higher_is_better, bounded
    ), notes


def _is_bounded(metric: _Metric, documents: Sequence[DocumentScore]) -> bool:
    if not documents:
        return metric.name in SHARES and metric.score is not None and 0 <= metric.score <= 1
    if metric.name in PERPLEXITIES or metric.name == BITS or not metric.higher_is_better:
        return False
    return all(document.value is not None and 0 <= document.value <= 1 for document in documents)


def _mean(documents: Sequence[DocumentScore]) -> float:
    return sum(document.value or 0.0 for document in documents) / sum(document.weight for document in documents)


def _agrees(metric: _Metric, documents: Sequence[DocumentScore], aggregation: str) -> bool:
    """Whether the documents give the score that is recorded."""
    if metric.score is None:
        return aggregation == "exp_mean"  # a perplexity beyond all numbers, of documents that are not
    mean = _mean(documents)
    if aggregation == "exp_mean":
        return metric.score > 0 and math.isclose(mean, math.log(metric.score), rel_tol=1e-6, abs_tol=1e-9)
    return math.isclose(mean, metric.score, rel_tol=1e-6, abs_tol=1e-9)


def _error_of(metric: _Metric, documents: Sequence[DocumentScore], aggregation: str) -> float | None:
    """The standard error of a score from its documents."""
    values, weights = np.array([(document.value, document.weight) for document in documents], float).T
    error = standard_error(totals(values, weights, [document.cluster for document in documents]))
    if error is None or aggregation != "exp_mean":
        return error
    return None if metric.score is None else number(error * metric.score, metric.name)


def _contradiction(
    metric: _Metric, computed: float | None, bounded: bool, documents: int | None, from_documents: bool
) -> float | None:
    """The standard error to use where the recorded one cannot be right, else None.

    It is compared with the one of the documents where these are known, else with that of a share of right answers,
    sqrt(s (1 - s) / (n - 1)). Documents in clusters have a larger one than lm-eval knows of.
    """
    if metric.stderr is None or metric.score is None:
        return None
    if not from_documents:
        computed = share_error(metric.score, documents) if bounded and documents else None
    if computed is None or math.isclose(computed, metric.stderr, rel_tol=TOLERANCE, abs_tol=1e-9):
        return None
    return computed
