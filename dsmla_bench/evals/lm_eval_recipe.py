"""How lm-eval asked a task, read from its results: what must be alike for two scores to be compared. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dsmla_bench.evals.lm_eval_fields import mapping, part, text, whole
from dsmla_bench.evals.scores import Recipe


def recipe_of(results: Mapping[str, Any], task: str) -> Recipe:
    """How a task was asked, as far as the results say."""
    config, asked = mapping(results.get("config") or {}, "config"), part(results, "configs", task)
    arguments = config.get("model_args")
    arguments = arguments if isinstance(arguments, Mapping) else {}
    shots = whole(mapping(results.get("n-shot") or {}, "n-shot").get(task))
    dtype = str(config.get("model_dtype") or arguments.get("dtype") or "auto").removeprefix("torch.")
    return Recipe(
        lm_eval_version=text(results.get("lm_eval_version")),
        task_version=text(mapping(results.get("versions") or {}, "versions").get(task)),
        task_hash=text(mapping(results.get("task_hashes") or {}, "task_hashes").get(task)),
        num_fewshot=shots,
        fewshot_seed=whole(config.get("fewshot_seed")) if shots else None,
        limit=_limit(config),
        filters=_sorted_json(asked.get("filter_list", [])) if asked else None,
        repeats=whole(asked.get("repeats")),
        chat_template_sha=_known(results, "chat_template_sha", "none"),
        system_instruction_sha=_known(results, "system_instruction_sha", "none"),
        fewshot_as_multiturn=bool(results["fewshot_as_multiturn"]) if "fewshot_as_multiturn" in results else None,
        generation=_sorted_json(asked["generation_kwargs"]) if "generation_kwargs" in asked else None,
        tokenizer=text(arguments.get("tokenizer")),
        model=text(results.get("model_name") or arguments.get("pretrained") or arguments.get("model")),
        model_hash=text(config.get("model_sha")),
        backend=text(config.get("model")),
        dtype=None if dtype == "auto" else dtype,
        max_length=whole(results.get("max_length")),
    )


def _limit(config: Mapping[str, Any]) -> str | None:
    """How many documents were asked for: a command line's 100.0 is the 100 of a run in process."""
    found = config.get("limit")
    return f"{found:g}" if isinstance(found, float) or whole(found) is not None else _known(config, "limit", "all")


def _known(section: Mapping[str, Any], key: str, unset: str) -> str | None:
    """A value as text, ``unset`` where it is recorded as null, None where it is not recorded."""
    return None if key not in section else text(section[key]) or unset


def _sorted_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=lambda item: type(item).__name__)
