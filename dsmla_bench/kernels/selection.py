"""Which cache format a serving engine stores for what it was asked, or in one sentence why it refuses. Pure.

    select(Question(arch, kv_cache_dtype="fp8", backend="FLASHMLA_SPARSE")) -> Selection | Refusal

A ``Question`` is what one gives vLLM: a GPU, ``--kv-cache-dtype``, an attention backend or none, and the model's head
size and heads. A ``Selection`` names backend, format with revision and bytes per token. A ``Refusal`` says what was
found and which single changes would work; each of them has been tried.

``rules`` is whose behaviour is reproduced. "0.33" is the table of ``selection_rules``. "0.30" is that table with the
two things that vLLM's fused DeepSeek-V3.2 attention did otherwise then: a backend without support for quantized
queries required a quantized cache to be fp8_ds_mla (or nvfp4_ds_mla, which is not renamed), and the scale of
fp8_ds_mla was amax / 448.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsmla_bench.kernels.arch import KNOWN, Architecture
from dsmla_bench.kernels.formats import Geometry, get_format
from dsmla_bench.kernels.selection_rules import (
    BACKENDS,
    CONDITIONS,
    DTYPES,
    OTHER_BACKENDS,
    OTHER_DTYPES,
    REVISIONS,
    RULES,
    Rule,
    priority,
)

SPELLINGS = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8"}
"""Two names of one number format, which vLLM resolves separately."""


@dataclass(frozen=True)
class Question:
    """What a serving engine is asked for.

    backend     an attention backend by name, or None for the engine's own choice
    query       "bf16" or "fp8": the only queries that the model's kernels can make, or None for either
    head_size   latent and RoPE values of a token together
    block_size  tokens per page
    heads       query heads of one GPU
    rules       the vLLM version whose behaviour is asked for: "0.33" or "0.30"

    Raises ValueError for other rules or queries, no head and no head size. All else that is unknown is a ``Refusal``.
    """

    arch: Architecture
    kv_cache_dtype: str = "auto"
    backend: str | None = None
    query: str | None = None
    head_size: int = 576
    block_size: int = 64
    heads: int = 128
    rules: str = "0.33"

    def __post_init__(self) -> None:
        if self.rules not in REVISIONS:
            raise ValueError(f"no rules of vLLM {self.rules!r}; available: {', '.join(REVISIONS)}")
        if self.query not in (None, "bf16", "fp8"):
            raise ValueError(f"queries are bf16 or fp8, found {self.query!r}")
        if self.head_size < 1 or self.heads < 1:
            raise ValueError(f"head size and heads must be 1 or more, found {self.head_size} and {self.heads}")

    def __str__(self) -> str:
        backend = f" with {self.backend}" if self.backend else ""
        return f"--kv-cache-dtype {self.kv_cache_dtype}{backend} on {self.arch.label}"


@dataclass(frozen=True)
class Selection:
    """A question's answer: ``format`` (name:revision) in the cache of ``backend``, read with ``query`` queries."""

    question: Question
    backend: str
    format: str
    query: str

    @property
    def row_bytes(self) -> int:
        """Bytes per token. fp8_ds_mla keeps its 656 for head size 512: the writer fills the RoPE part with zeros."""
        fmt = get_format(self.format)
        return fmt.row_bytes(fmt.geometry or Geometry(self.question.head_size, 0))

    def __str__(self) -> str:
        chosen = "" if self.question.backend else f" goes to {self.backend}, which"
        what = f"stores {self.format}, {self.row_bytes} bytes a token, and takes {self.query} queries"
        return f"{self.question}{chosen} {what}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what surprises: an alias, the other spelling of the dtype, conditions that are not judged."""
        dtype, name = self.question.kv_cache_dtype, self.format.partition(":")[0]
        alias = dtype != name and name == "fp8_ds_mla"
        notes = [f"{dtype} is an alias of {name} there."] if alias else []
        if dtype in SPELLINGS:
            other = select(replace(self.question, kv_cache_dtype=SPELLINGS[dtype]))
            if isinstance(other, Refusal):
                notes.append(f"The spelling matters: {SPELLINGS[dtype]} is refused.")
            elif other.format != self.format:
                notes.append(f"The spelling matters: {other}.")
        return (*notes, f"Not judged: {CONDITIONS[self.backend]}.")


@dataclass(frozen=True)
class Refusal:
    """A question without an answer: ``found`` says why; ``alternatives`` are questions that have one."""

    question: Question
    found: str
    alternatives: tuple[Question, ...]

    def __str__(self) -> str:
        return f"{self.question} is refused: {self.found}; {_what_works(self.question, self.alternatives)}"


def select(question: Question) -> Selection | Refusal:
    """The format that is stored, or why there is none."""
    unknown = _unknown(question)
    if unknown:
        return Refusal(question, unknown, _alternatives(question))
    rules = _rules_of(question)
    for stage in STAGES:
        kept = [rule for rule in rules if stage.accepts(rule, question)]
        if not kept:
            return Refusal(question, stage.found(rules, question), _alternatives(question))
        rules = kept
    rule = _first(rules, question)
    return Selection(question, rule.backend, _revision(rule.format, question.rules), rule.query)


def why_not(format: str, arch: Architecture) -> str | None:
    """Why no sparse MLA backend of vLLM 0.33 stores ``format`` on ``arch``, in one sentence; None when one does.

    ``format`` is a name, or name:revision for that revision only. Backends for dense MLA are not asked.
    """
    rules = [rule for rule in RULES if format in (rule.format, _revision(rule.format, "0.33"))]
    if any(arch.major in rule.majors for rule in rules):
        return None
    if not rules:
        stored = _listed(sorted({_revision(rule.format, "0.33") for rule in RULES}))
        return f"no sparse MLA backend of vLLM 0.33 stores {format}; they store {stored}"
    places = _listed(known.label for known in KNOWN if any(known.major in rule.majors for rule in rules))
    backends = _listed(dict.fromkeys(rule.backend for rule in rules))
    return f"no sparse MLA backend of vLLM 0.33 stores {format} on {arch.label}; on {places} {backends} can"


@dataclass(frozen=True)
class Stage:
    """One condition that rules are narrowed by, and what is found when none is left of ``rules``."""

    accepts: Callable[[Rule, Question], bool]
    found: Callable[[Sequence[Rule], Question], str]


def _takes_block(rule: Rule, question: Question) -> bool:
    size, multiple = question.block_size, rule.block_multiple
    return size == multiple if rule.exact_block else size > 0 and size % multiple == 0


def _takes_heads(rule: Rule, question: Question) -> bool:
    return rule.heads is None or rule.heads[0] <= question.heads <= rule.heads[1]


def _takes_unpacked(rule: Rule, question: Question) -> bool:
    """The rule on quantized queries before 0.33: without them a quantized cache is one that carries its scales."""
    return question.rules != "0.30" or rule.query == "fp8" or rule.format != "fp8"


def _blocks(rules: Sequence[Rule]) -> str:
    taken = (f"{'' if rule.exact_block else 'multiples of '}{rule.block_multiple}" for rule in rules)
    return _listed(dict.fromkeys(taken))


STAGES = (
    Stage(lambda rule, q: q.arch.major in rule.majors, lambda rules, q: f"{_subject(q, 'run')} there"),
    Stage(lambda rule, q: q.kv_cache_dtype in rule.dtypes, lambda rules, q: f"{_subject(q, 'accept')} it there"),
    Stage(
        lambda rule, q: not rule.head_sizes or q.head_size in rule.head_sizes,
        lambda rules, q: (
            f"found head size {q.head_size}, taken are "
            + _listed(map(str, sorted({size for rule in rules for size in rule.head_sizes})))
        ),
    ),
    Stage(_takes_block, lambda rules, q: f"found pages of {q.block_size} tokens, taken are {_blocks(rules)}"),
    Stage(
        _takes_heads,
        lambda rules, q: (
            f"found {q.heads} heads, taken are "
            + _listed(f"{rule.heads[0]} to {rule.heads[1]}" for rule in rules if rule.heads)
        ),
    ),
    Stage(
        lambda rule, q: q.query in (None, rule.query),
        lambda rules, q: f"found {q.query} queries, taken are {_listed(sorted({rule.query for rule in rules}))}",
    ),
    Stage(
        _takes_unpacked,
        lambda rules, q: (
            f"{_listed(dict.fromkeys(rule.backend for rule in rules))} takes no quantized queries, "
            f"without which vLLM {q.rules} requires fp8_ds_mla"
        ),
    ),
)
"""In the order in which a refusal is best explained; the answer does not depend on it."""


def _subject(question: Question, verb: str) -> str:
    """``FLASHMLA_SPARSE does not run`` or ``no sparse MLA backend of vLLM 0.33 runs``."""
    if question.backend:
        return f"{question.backend} does not {verb}"
    return f"no sparse MLA backend of vLLM {question.rules} {verb}s"


def _unknown(question: Question) -> str | None:
    """What is wrong with a backend or a dtype that no rule knows."""
    backend, dtype = question.backend, question.kv_cache_dtype
    if backend is not None and backend not in BACKENDS:
        return OTHER_BACKENDS.get(backend, f"vLLM {question.rules} has no sparse MLA backend {backend}")
    if dtype not in DTYPES:
        return OTHER_DTYPES.get(dtype, f"no sparse MLA backend of vLLM {question.rules} accepts {dtype}")
    return None


def _rules_of(question: Question) -> list[Rule]:
    return [rule for rule in RULES if question.backend in (None, rule.backend)]


def _first(rules: Sequence[Rule], question: Question) -> Rule:
    """Of the rules that accept the question, the one that vLLM comes to first."""
    order = priority(question.arch.major, question.kv_cache_dtype, question.head_size, question.heads)
    return min(rules, key=lambda rule: order.index(rule.backend) if rule.backend in order else len(order))


def _revision(format: str, rules: str) -> str:
    revision = REVISIONS[rules].get(format)
    return f"{format}:{revision}" if revision else get_format(format).key


def _accepted(question: Question) -> bool:
    if _unknown(question):
        return False
    return any(all(stage.accepts(rule, question) for stage in STAGES) for rule in _rules_of(question))


def _alternatives(question: Question) -> tuple[Question, ...]:
    """Questions that are answered: one thing changed or, where that is not enough, the backend too, then the rest."""
    unnamed = replace(question, backend=None)
    plain = Question(question.arch, rules=question.rules)
    for base in (question, unnamed, replace(unnamed, kv_cache_dtype="auto")):
        answered = (base,) if _accepted(base) else tuple(filter(_accepted, _changed(base)))
        if answered:
            return answered
    return tuple(filter(_accepted, _changed(plain)))


def _changed(base: Question) -> Iterable[Question]:
    yield from (replace(base, arch=arch) for arch in KNOWN)
    yield from (replace(base, backend=backend) for backend in BACKENDS)
    yield from (replace(base, kv_cache_dtype=dtype) for dtype in DTYPES)
    yield from (replace(base, query=query) for query in ("bf16", "fp8"))
    yield from (replace(base, block_size=size) for size in (32, 64))
    yield from (replace(base, head_size=size) for size in (512, 576))


PHRASES: dict[str, Callable[[Sequence[Any]], str]] = {
    "arch": lambda values: f"on {_listed((arch.label for arch in values), 'or')}",
    "backend": lambda values: f"with {_listed(values, 'or')}" if None not in values else "without --backend",
    "kv_cache_dtype": lambda values: f"with --kv-cache-dtype {_listed(values, 'or')}",
    "query": lambda values: f"with {values[0]} queries" if values[0] else "with either query",
    "head_size": lambda values: f"with head size {_listed(map(str, values), 'or')}",
    "block_size": lambda values: f"with pages of {_listed(map(str, values), 'or')} tokens",
    "heads": lambda values: f"with {values[0]} heads",
}
"""What a change of one field to any of some values is called, by field of ``Question``."""


def _what_works(question: Question, alternatives: Sequence[Question]) -> str:
    """``it works on sm_100 or sm_103, or with --kv-cache-dtype auto or fp8``; first what all alternatives change."""
    shared, varied = [], []
    for field, phrase in PHRASES.items():
        asked = getattr(question, field)
        values = list(dict.fromkeys(getattr(other, field) for other in alternatives))
        if asked not in values and len(values) == 1:
            shared.append(phrase(values))
        elif values != [asked]:
            varied.append(phrase([value for value in values if value != asked]))
    return " ".join(["it works", *shared, ", or ".join(varied)]).rstrip()


def _listed(names: Iterable[str], word: str = "and") -> str:
    """``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last
