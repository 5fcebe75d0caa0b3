"""What may be compared with what: recipes key by key, documents by task, filter, metric and number with hashes checked.

Pure. Two scores are of the same question only if it was asked alike, so a recipe that is known to differ in a key of
REFUSED makes them not comparable, and one that differs in a key of NOTED is said to. A document is paired with the one
of its number; where hashes say that it is another document, another prompt or another target, nothing is paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsmla_bench.evals.scores import DocumentScore, Recipe

NOTED = ("model", "backend", "max_length")
"""May differ for the format's sake: a server names its models, and a smaller cache takes longer contexts."""
REFUSED = tuple(name for name in Recipe.__dataclass_fields__ if name not in NOTED)
HASHES = {"doc_hash": "document", "prompt_hash": "prompt", "target_hash": "target"}
_SHOWN = 60
"""Letters of a differing value that a sentence shows."""

Key = tuple[str, str, str]
"""Task, filter, metric."""


@dataclass(frozen=True)
class Pairs:
    """The documents that both sides scored, place by place, in the order of their numbers.

    left_out   how many documents only one side has, or has no value for
    conflict   why these are not the same documents, in one sentence; nothing is paired then
    """

    baseline: tuple[DocumentScore, ...] = ()
    other: tuple[DocumentScore, ...] = ()
    left_out: int = 0
    conflict: str | None = None


def differing(baseline: Recipe, other: Recipe, keys: Iterable[str] = REFUSED) -> list[str]:
    """A sentence for each of ``keys`` that both know and that differs: "num_fewshot differs: 5 and 0"."""
    sentences = []
    for key in keys:
        first, second = getattr(baseline, key), getattr(other, key)
        if first is not None and second is not None and first != second:
            sentences.append(f"{key} differs: {_shortened(first)} and {_shortened(second)}")
    return sentences


def pair(baseline: Iterable[DocumentScore], other: Iterable[DocumentScore]) -> dict[Key, Pairs]:
    """The pairs of every task, filter and metric that both have documents of."""
    firsts, seconds = _by_key(baseline), _by_key(other)
    return {key: _pair(documents, seconds[key]) for key, documents in firsts.items() if key in seconds}


def _by_key(documents: Iterable[DocumentScore]) -> dict[Key, list[DocumentScore]]:
    found: dict[Key, list[DocumentScore]] = defaultdict(list)
    for document in documents:
        found[document.task, document.filter, document.metric].append(document)
    return dict(found)


def _pair(baseline: list[DocumentScore], other: list[DocumentScore]) -> Pairs:
    firsts, seconds = ({document.doc_id: document for document in side} for side in (baseline, other))
    for documents, by_id in ((baseline, firsts), (other, seconds)):
        if len(documents) != len(by_id):
            return Pairs(conflict=f"{len(documents) - len(by_id)} documents occur twice by number; expected once each")
    common = sorted(firsts.keys() & seconds.keys())
    conflict = next(filter(None, (_conflict(firsts[number], seconds[number]) for number in common)), None)
    if conflict:
        return Pairs(conflict=conflict)
    valued = [number for number in common if firsts[number].value is not None and seconds[number].value is not None]
    return Pairs(
        baseline=tuple(firsts[number] for number in valued),
        other=tuple(seconds[number] for number in valued),
        left_out=len(firsts.keys() | seconds.keys()) - len(valued),
    )


def _conflict(first: DocumentScore, second: DocumentScore) -> str | None:
    """Why two scores of one number are not of the same question, or None."""
    for name, what in HASHES.items():
        hashes: Mapping[str, str | None] = {"baseline": getattr(first, name), "other": getattr(second, name)}
        if None not in hashes.values() and len(set(hashes.values())) > 1:
            return f"document {first.doc_id} has another {what} ({name} differs), so these are not the same questions"
    if first.weight != second.weight:
        return f"document {first.doc_id} has another weight ({first.weight:g} and {second.weight:g}): not the same text"
    if first.cluster != second.cluster:
        return f"document {first.doc_id} belongs to another cluster ({first.cluster} and {second.cluster})"
    return None


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
