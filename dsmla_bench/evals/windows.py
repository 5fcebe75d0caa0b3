"""Windows of tokens for the fidelity pass, cut from what the run's tasks show to the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def token_windows(tasks: Mapping[str, Any], tokenizer: Any, count: int, length: int) -> torch.Tensor:
    """Up to ``count`` windows of token ids int64 [N, ``length``], taken from the tasks in turn.

    Prompts of a task follow each other, an end-of-text token between two, and are cut into windows that do not overlap.
    N is less than ``count`` where the tasks have no more text, and may be 0.
    """
    streams = [_windows(_prompts(task), tokenizer, length) for task in tasks.values()]
    in_turn = (window for turn in itertools.zip_longest(*streams) for window in turn if window is not None)
    chosen = list(itertools.islice(in_turn, count))
    return torch.tensor(chosen, dtype=torch.int64).reshape(len(chosen), length)


def _prompts(task: Any) -> Iterator[str]:
    """What the model is shown of each document, without few-shot examples."""
    for document in task.eval_docs:
        text = task.doc_to_text(document)
        yield text if isinstance(text, str) and text else str(task.doc_to_target(document))


def _windows(prompts: Iterator[str], tokenizer: Any, length: int) -> Iterator[list[int]]:
    tokens: list[int] = []
    for prompt in prompts:
        tokens += [*tokenizer(prompt, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        while len(tokens) >= length:
            yield tokens[:length]
            tokens = tokens[length:]
