"""lm-eval's tasks, loaded before any model is: by name, from this project, from lm-eval or from a folder of task YAML.

lm-eval indexes its 14 000 tasks in five seconds, so it is asked for them only when a name is none of ours and of no
folder. A task is an object of lm-eval's that holds its documents, so whatever is missing shows here.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsmla_bench.error_text import first_line, typed_line

OURS = Path(__file__).parent / "tasks"
PLACES = ("config_source", "tokenizer")
"""Metadata of a task that names places on this machine."""
SEED = 1234
"""lm-eval's own, of few-shot examples and of sampling."""


@dataclass(frozen=True)
class TaskRecipe:
    """How tasks are asked, in lm-eval's terms and with its defaults. Raises ValueError for impossible numbers.

    num_fewshot          examples in the prompt; None: what the task says. Tasks that say 0 stay at 0
    limit                documents of each task, or below 1 their share; None: all
    apply_chat_template  whether prompts are put into the tokenizer's chat template
    system_instruction   said before everything else
    """

    num_fewshot: int | None = None
    limit: float | None = None
    apply_chat_template: bool = False
    system_instruction: str | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not (0 < self.limit < 1 or self.limit == int(self.limit) > 0):
            raise ValueError(f"a limit is a number of documents, or a share of them below 1, found {self.limit:g}")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"the number of few-shot examples cannot be negative, found {self.num_fewshot}")


def load_tasks(names: Iterable[str], recipe: TaskRecipe, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Name → task (lm_eval.api.task.Task) of every task that ``names`` stand for, in their order, groups expanded.

    A name is a task, group or tag of ours or of lm-eval's, or a folder of task YAML: all of its tasks. ``metadata``
    is what tasks may be told (some want a tokenizer). Raises ValueError, in one sentence, for an unknown name, for data
    that is not at hand, for files that are no YAML, and for a task that cannot be made, runs the model's code, needs
    pictures, or has a metric without an aggregation.
    """
    names = list(dict.fromkeys(names))
    folders = [Path(name) for name in names if Path(name).is_dir()]
    for folder in folders:
        _require_yaml(folder)
    manager = _manager(folders, False, metadata)
    if unknown := [name for name in names if not Path(name).is_dir() and name not in manager.task_index]:
        manager = _manager(folders, True, metadata)
        for name in unknown:
            _require_known(name, manager)
    tasks: dict[str, Any] = {}
    for name in names:
        for member in _members(Path(name), manager) if Path(name).is_dir() else [name]:
            tasks |= _load(member, manager)
    for name, task in tasks.items():
        _require_usable(name, task)
        _ask_as(task, recipe)
    return tasks


def _manager(folders: list[Path], include_defaults: bool, metadata: Mapping[str, Any] | None) -> Any:
    from lm_eval.tasks import TaskManager

    paths = list(dict.fromkeys([OURS, *folders]))
    return TaskManager(include_path=paths, include_defaults=include_defaults, metadata=dict(metadata or {}))


def _require_known(name: str, manager: Any) -> None:
    if Path(name).is_file():
        raise ValueError(f"{name}: is a file; --tasks takes the folder of a task's YAML, or a task by its name")
    if name not in manager.task_index:
        near = difflib.get_close_matches(name, manager.all_tasks, n=3)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise ValueError(f"no task {name!r}, here or in lm-eval, and no folder of that name{hint}")


def _members(folder: Path, manager: Any) -> list[str]:
    """The tasks whose YAML lies in the folder. Raises ValueError when there is none."""
    places = {name: manager.task_index[name].yaml_path for name in manager.all_subtasks}
    inside = [name for name, place in places.items() if place and place.is_relative_to(folder)]
    if not inside:
        raise ValueError(f"{folder}: holds no task; expected lm-eval's task YAML, files *.yaml with a key task")
    return inside


def _load(name: str, manager: Any) -> dict[str, Any]:
    """The tasks that one name stands for. Raises ValueError where data or a library is missing, or one cannot be made.

    lm-eval tries the first document of a task when it makes it, so mistakes in templates and functions show here.
    """
    try:
        return dict(manager.load([name])["tasks"])
    except ImportError as error:
        raise ValueError(f"task {name} needs a library that is not installed: {first_line(error)}") from error
    except OSError as error:  # ConnectionError too: what the hub's libraries raise for data that is not in the cache
        forbidden = os.environ.get("HF_HUB_OFFLINE") == "1"
        why = (
            "HF_HUB_OFFLINE=1 forbids downloading it; --online allows it"
            if forbidden
            else "see whether it can be reached"
        )
        raise ValueError(f"task {name} has no data here ({first_line(error)}), and {why}") from error
    except Exception as error:  # its YAML names functions and templates, which may raise anything
        raise ValueError(
            f"task {name} cannot be made ({typed_line(error)}); see its YAML and the functions that it names"
        ) from error


def _require_yaml(folder: Path) -> None:
    """Raise ValueError unless every ``*.yaml`` in the folder is YAML: lm-eval passes over one that is not."""
    import yaml  # type: ignore[import-untyped]  # it carries no types

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in Python takes hours for deep nesting
    for file in sorted(folder.rglob("*.yaml")):
        try:
            list(yaml.parse(file.read_bytes(), Loader=loader))
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise ValueError(f"{file}{line}: is no YAML ({error.problem})") from error
        except yaml.YAMLError as error:
            raise ValueError(f"{file}: is no YAML ({first_line(error)})") from error


def _require_usable(name: str, task: Any) -> None:
    """Raise ValueError for a task that cannot be run here, or whose scores nothing adds up."""
    if getattr(task, "UNSAFE_CODE", False):
        raise ValueError(f"task {name} runs code that the model wrote, which dsmla-bench does not do; leave it out")
    if getattr(task, "MULTIMODAL", False):
        raise ValueError(f"task {name} needs pictures or sound; only tasks of text can be run")
    for metric, aggregate in task.aggregation().items():
        if not callable(aggregate):
            raise ValueError(f"task {name}: its metric {metric} has no aggregation that lm-eval knows, such as mean")


def _ask_as(task: Any, recipe: TaskRecipe) -> None:
    """Set the number of few-shot examples as lm-eval does: what the task fixes at 0 stays 0."""
    own = task.get_config("num_fewshot")
    if own is None or (recipe.num_fewshot is not None and own != 0):
        task.set_config(key="num_fewshot", value=recipe.num_fewshot or 0)


def task_sha256(task: Any) -> str:
    """SHA-256 of a task's configuration, of all its documents, and of those that few-shot examples are drawn from."""
    config = task.dump_config()
    config["metadata"] = {key: value for key, value in config.get("metadata", {}).items() if key not in PLACES}
    digest = hashlib.sha256(_json(config))
    for document in task.eval_docs:
        digest.update(_json(document))
    if task.get_config("num_fewshot"):
        for document in task.fewshot_docs():
            digest.update(_json(document))
    return digest.hexdigest()


def run_task(lm: Any, name: str, task: Any, recipe: TaskRecipe) -> dict[str, Any]:
    """What lm-eval makes of one task by the model ``lm`` (lm_eval.api.model.LM), as its own command records it.

    The random generators are seeded anew, so a task's result does not depend on what ran before it. lm-eval's bootstrap
    is left out: it starts a pool of processes per metric and knows nothing of pairs.
    """
    from lm_eval.evaluator import evaluate

    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    task.set_fewshot_seed(seed=SEED)
    found = evaluate(
        lm=lm,
        task_dict={"tasks": {name: task}},
        limit=recipe.limit,
        bootstrap_iters=0,
        log_samples=True,
        system_instruction=recipe.system_instruction,
        apply_chat_template=recipe.apply_chat_template,
        fewshot_as_multiturn=recipe.apply_chat_template,
    )
    return {
        **found,
        "config": {"limit": recipe.limit, "fewshot_seed": SEED},
        "lm_eval_version": version("lm-eval"),
        "chat_template_sha": _sha256(lm.chat_template(True) if recipe.apply_chat_template else None),
        "system_instruction_sha": _sha256(recipe.system_instruction),
        "fewshot_as_multiturn": recipe.apply_chat_template,
    }


def _sha256(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False).encode("utf-8", "surrogateescape")
