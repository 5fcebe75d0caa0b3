"""Folders that lm-eval's own command wrote, read as ``TaskScores``. Files are not trusted.

``lm_eval run --output_path DIR --log_samples`` leaves DIR/MODEL/results_DATE.json and, for every task,
samples_TASK_DATE.jsonl beside it. ``read_output`` takes DIR, DIR/MODEL or one results file. Several results files in
one folder are read together as long as no task occurs in two of them.

Sizes are bounded, and samples are read line by line: a prompt of 100 000 tokens is let go before the next is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dsmla_bench.evals.lm_eval_fields import mapping
from dsmla_bench.evals.lm_eval_scores import task_scores
from dsmla_bench.evals.scores import TaskScores

MAX_RESULTS_BYTES = 64 * 2**20
MAX_LINE_BYTES = 64 * 2**20
MAX_DOCUMENTS = 2_000_000
MAX_FILES = 1000
EXPECTED = "expected what lm-eval writes with --output_path and --log_samples"


def read_output(path: Path, format: str) -> list[TaskScores]:
    """The scores of all tasks in a folder or results file, under the name ``format``.

    A task without samples has a note that says so. Raises ValueError, in one sentence, for a path without results,
    a task that occurs twice, a file beyond the bounds, or one that is not what lm-eval writes.
    """
    found: dict[str, tuple[Path, TaskScores]] = {}
    for file in _results_files(path):
        for scores in _read_results(file, format):
            if scores.task in found:
                raise ValueError(
                    f"{path}: task {scores.task} is in {found[scores.task][0]} and in {file}; give one of them"
                )
            found[scores.task] = file, scores
    return [scores for _, scores in found.values()]


def _results_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder or file; {EXPECTED}")
    files = sorted(path.glob("results_*.json")) or sorted(path.glob("*/results_*.json"))
    if not files:
        raise ValueError(f"{path}: holds no results_*.json, nor does a folder in it; {EXPECTED}")
    if len(files) > MAX_FILES:
        raise ValueError(f"{path}: holds {len(files)} results files, more than {MAX_FILES}; give one of them")
    return files


def _read_results(file: Path, format: str) -> list[TaskScores]:
    """The scores of one results file and the samples beside it."""
    size = file.stat().st_size
    if size > MAX_RESULTS_BYTES:
        raise ValueError(f"{file}: {size} bytes are more than the {MAX_RESULTS_BYTES} that results may have")
    date = file.stem.removeprefix("results_")
    beside = {sample.name: sample for sample in file.parent.glob("samples_*.jsonl")}
    try:
        results = mapping(_parsed(file.read_bytes()), "a results file")
        tasks = mapping(results.get("results"), "results")
        samples = {task: beside.get(f"samples_{task}_{date}.jsonl") for task in tasks}
        read = {task: _samples(sample) for task, sample in samples.items() if sample is not None}
        return [_marked(scores) for scores in task_scores(results, read, format)]
    except ValueError as error:
        raise ValueError(f"{file}: {error}; {EXPECTED}") from error


def _marked(scores: TaskScores) -> TaskScores:
    """The scores with a note where their documents are missing."""
    if scores.documents:
        return scores
    note = "lm-eval's samples are not there (--log_samples writes them)"
    return TaskScores(scores.format, scores.task, scores.recipe, scores.aggregates, (), (note, *scores.notes))


def _samples(file: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a samples file, each a JSON object."""
    with file.open("rb") as lines:
        for number in range(1, MAX_DOCUMENTS + 1):
            line = lines.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            where = f"{file.name}, line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{where} has more than {MAX_LINE_BYTES} bytes")
            try:
                yield mapping(_parsed(line), "a sample")
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
        if lines.readline(1):
            raise ValueError(f"{file.name} has more than {MAX_DOCUMENTS} lines")


def _parsed(text: bytes) -> object:
    """A JSON document. Raises ValueError where it is none, or holds halves of characters, which cannot be written."""
    try:
        found: object = json.loads(text)
        if b"\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({' '.join(str(error).split()):.80})") from error
