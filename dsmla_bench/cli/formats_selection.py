"""What ``dsmla-bench formats --arch`` prints: one question explained, or backends × spellings × architectures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from dsmla_bench.cli.common import print_json, print_text, terminal_width
from dsmla_bench.cli.grid import fitted
from dsmla_bench.kernels.arch import KNOWN, Architecture
from dsmla_bench.kernels.selection import Question, Selection, select
from dsmla_bench.kernels.selection_rules import BACKENDS, DTYPES, OTHER_BACKENDS, OTHER_DTYPES

CHOSEN = "*"
KNOWN_NAMES = {"kv_cache_dtype": (*DTYPES, *OTHER_DTYPES), "backend": (*BACKENDS, *OTHER_BACKENDS)}
"""What vLLM has, by field of ``Question``: what is stored and what is refused with a reason."""


def print_selection(arch: str, question: dict[str, Any], *, as_json: bool) -> None:
    """Answer a question (the other fields of ``Question``, None for the default), or print the matrix for "all".

    Raises ValueError for a spelling or a backend that vLLM does not have: a misspelt one is no refusal.
    """
    asked = {name: value for name, value in question.items() if value is not None}
    for name, known in KNOWN_NAMES.items():
        if name in asked and asked[name] not in known:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} must be one of {', '.join(known)}; found {asked[name]!r}")
    if arch == "all":
        questions = list(_matrix(asked))
        if as_json:
            print_json([_record(other) for other in questions])
        else:
            print_text(_table(questions))
        return
    one = Question(Architecture.parse(arch), **asked)
    if as_json:
        print_json(_record(one))
        return
    answer = select(one)
    notes = answer.notes if isinstance(answer, Selection) else ()
    print_text("\n".join([f"{answer}.", *notes]))


def _matrix(asked: dict[str, Any]) -> Iterator[Question]:
    """Every architecture, backend (None: vLLM's choice) and spelling, but for what was asked for."""
    backends = [asked["backend"]] if "backend" in asked else [None, *BACKENDS]
    dtypes = [asked["kv_cache_dtype"]] if "kv_cache_dtype" in asked else DTYPES
    for arch, backend, dtype in itertools.product(KNOWN, backends, dtypes):
        yield Question(arch, **{**asked, "backend": backend, "kv_cache_dtype": dtype})


def _record(question: Question) -> dict[str, Any]:
    """A question and its answer as plain data."""
    answer = select(question)
    found = answer if isinstance(answer, Selection) else None
    return {
        **dataclasses.asdict(question),
        "arch": question.arch.name,
        "selected": {"backend": found.backend, "format": found.format, "query": found.query} if found else None,
        "bytes_per_token": found.row_bytes if found else None,
        "notes": list(found.notes) if found else [],
        "refusal": None if found else str(answer),
    }


def _table(questions: list[Question]) -> str:
    """Architectures of one generation share a column, for no rule tells them apart; lines of refusals are left out."""
    generations = [list(group) for _, group in itertools.groupby(KNOWN, key=lambda arch: arch.major)]
    cells = {(q.backend, q.kv_cache_dtype, q.arch): _cell(q) for q in questions}
    lines = [["backend", "--kv-cache-dtype", *(" ".join(arch.name for arch in group) for group in generations)]]
    for backend, dtype in dict.fromkeys((q.backend, q.kv_cache_dtype) for q in questions if q.backend):
        line = [cells[backend, dtype, group[0]] for group in generations]
        if any(cell != "–" for cell in line):
            lines.append([backend, dtype, *line])
    asked = questions[0]
    if len(lines) == 1:
        return f"{select(questions[-1])}."
    head = (
        f"What the sparse MLA backends of vLLM {asked.rules} store, in bytes a token, for head size {asked.head_size}, "
        f"{asked.heads} heads and pages of {asked.block_size} tokens"
    )
    legend = f"{CHOSEN} what vLLM chooses when no backend is named; – refused: name it, with --arch, to see why"
    return "\n".join([head, "", *fitted(lines, width=terminal_width(), keys=2), "", legend])


def _cell(question: Question) -> str:
    """``fp8_ds_mla 656 *``: format and bytes, marked where the same question without a backend comes here too."""
    answer = select(question)
    if not isinstance(answer, Selection):
        return "–"
    free = select(dataclasses.replace(question, backend=None))
    mark = f" {CHOSEN}" if isinstance(free, Selection) and free.backend == answer.backend else ""
    return f"{answer.format.partition(':')[0]} {answer.row_bytes}{mark}"
