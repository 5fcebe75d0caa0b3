"""What a process needs before it imports the first library of an accuracy run: the extra, and an offline hub.

Hugging Face's libraries read these variables when they are imported, so they are set in this process and nowhere else.
"""

from __future__ import annotations

import importlib.util
import logging
import os

EXTRA = ("lm_eval", "transformers", "accelerate", "tenacity")
"""Modules that the extra ``accuracy`` brings."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def require_extra() -> None:
    """Raise ValueError, saying what to install, unless every module of the extra can be imported."""
    missing = [module for module in EXTRA if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(
            f"accuracy needs {', '.join(missing)}, not installed here; install with pip install 'dsmla-bench[accuracy]'"
        )


def environment(*, online: bool) -> dict[str, str]:
    """The variables that silence the libraries' progress and, unless ``online``, forbid them the network."""
    return QUIET if online else {**QUIET, **OFFLINE}


def set_environment(*, online: bool) -> None:
    """Silence the libraries' progress and logs, and forbid them the network unless ``online``."""
    os.environ.update(environment(online=online))
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
