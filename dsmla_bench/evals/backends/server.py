"""A running server for every format, asked over HTTP through the OpenAI completions protocol.

What is served is the server's business: the format is what its user says it is. Tasks that compare log-likelihoods need
those of the prompt (``echo`` with ``logprobs``), which not every server returns, so that is asked first. Prompts are
sent as token ids, so a tokenizer is needed here, and it must be the server's.

Requests run side by side. A server batches what is there at the moment, which changes sums in their last bits and from
run to run: the A/A repeat shows how much.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import requests
from lm_eval.models.openai_completions import LocalCompletionsAPI

from dsmla_bench.error_text import first_line
from dsmla_bench.evals.backends import Variant
from dsmla_bench.evals.lm_eval_model import Quiet
from dsmla_bench.evals.model_files import tokenizer_sha256

COMPLETIONS = "/v1/completions"
PROBE = [0, 1, 2]
"""Token ids that every vocabulary has."""
TIMEOUT_S = 60.0
DEFAULT_MAX_LENGTH = 2048


class CompletionsModel(Quiet, LocalCompletionsAPI):  # type: ignore[misc]  # lm-eval carries no types
    """lm-eval's client of a server."""


@dataclass(frozen=True)
class ServerBackend:
    """``urls``: format → base URL of its server; ``tokenizer``: its folder; ``max_length`` in tokens, None: ask.

    ``concurrent``: how many requests are under way at once.
    """

    urls: Mapping[str, str]
    tokenizer: Path
    concurrent: int = 8
    max_length: int | None = None
    name: str = "server"
    geometry: None = None

    def cache_format(self, variant: Variant) -> None:
        """None: the format is what its user calls it."""
        return None

    def why_not(self, variant: Variant) -> str | None:
        """A server has no probes of a part."""
        return "a server stores whole tokens; parts can be probed with --backend sim" if variant.only else None

    def check(self, variants: Sequence[Variant]) -> None:
        """Raise ValueError unless every server answers and returns log-probabilities of the prompt."""
        for name in dict.fromkeys(variant.format for variant in variants):
            require_prompt_logprobs(name, self._lm(name))

    def facts(self, variant: Variant) -> dict[str, Any]:
        """The server's URL and what it says of its model; the tokenizer."""
        served = served_model(variant.format, self.urls[variant.format])
        return {
            "url": completions_url(self.urls[variant.format]),
            "model": served.get("id"),
            "max_length": self._max_length(served),
            "tokenizer_sha256": tokenizer_sha256(self.tokenizer),
        }

    def fidelity(self, variants: Sequence[Variant], tasks: Mapping[str, Any], windows: int, tokens: int) -> None:
        """None: it returns the log-probabilities of given tokens, not whole distributions."""
        return None

    @contextlib.contextmanager
    def open(self, variant: Variant) -> Iterator[CompletionsModel]:
        """lm-eval's own client of such a server. Raises ValueError where it fails three times."""
        lm = self._lm(variant.format)
        try:
            yield lm
        except (aiohttp.ClientError, requests.RequestException) as error:
            raise ValueError(f"server {variant.format}: {lm.base_url} failed ({first_line(error)})") from error

    def _max_length(self, served: Mapping[str, Any]) -> int:
        return int(self.max_length or served.get("max_model_len") or DEFAULT_MAX_LENGTH)

    def _lm(self, name: str) -> CompletionsModel:
        served = served_model(name, self.urls[name])
        return CompletionsModel(
            base_url=completions_url(self.urls[name]),
            model=served.get("id"),
            tokenizer=str(self.tokenizer),
            tokenizer_backend="huggingface",
            num_concurrent=self.concurrent,
            max_length=self._max_length(served),
        )


def completions_url(url: str) -> str:
    """``http://host:8000`` → its completions endpoint; one that is given already stays."""
    base = url.rstrip("/")
    if base.endswith("/completions"):
        return base
    return base.removesuffix("/v1") + COMPLETIONS


def served_model(name: str, url: str) -> dict[str, Any]:
    """What the server says of the first model that it serves: ``id``, and ``max_model_len`` where it knows that.

    Raises ValueError when it cannot be asked, or names no model.
    """
    models_url = completions_url(url).removesuffix("/completions") + "/models"
    answer = _json(name, models_url, requests.get, timeout=TIMEOUT_S)
    served = answer.get("data")
    if not isinstance(served, list) or not served or not isinstance(served[0], dict) or not served[0].get("id"):
        raise ValueError(f"server {name}: {models_url} names no model; expected an OpenAI-compatible server")
    return dict(served[0])


def require_prompt_logprobs(name: str, lm: CompletionsModel) -> None:
    """Raise ValueError unless the server returns a log-probability for every token of a prompt but the first."""
    payload = lm._create_payload([PROBE], generate=False)
    answer = _json(name, lm.base_url, requests.post, json=payload, headers=lm.header, timeout=TIMEOUT_S)
    try:
        found = answer["choices"][0]["logprobs"]
        values, tops = found["token_logprobs"], found["top_logprobs"]
        whole = len(values) == len(tops) == len(PROBE) + 1
        finite = all(isinstance(value, float) and math.isfinite(value) for value in values[1:])
    except (KeyError, IndexError, TypeError):
        whole = finite = False
    if not (whole and finite):
        raise ValueError(
            f"server {name}: {lm.base_url} does not return the log-probabilities of a prompt (echo with logprobs) that "
            f"tasks are scored by; nothing was scored; use a server that does (vLLM does), or --backend sim"
        )


def _json(name: str, url: str, ask: Any, **arguments: Any) -> dict[str, Any]:
    """The JSON object that a server answers. Raises ValueError for anything else."""
    try:
        response = ask(url, **arguments)
        response.raise_for_status()
        answer = response.json()
    except requests.RequestException as error:  # a body that is no JSON included
        said = str(error) if error.response is not None else type(error).__name__
        raise ValueError(f"server {name}: {url} cannot be used ({said:.200})") from error
    if not isinstance(answer, dict):
        raise ValueError(f"server {name}: {url} answered {answer!r:.80} instead of a JSON object")
    return answer
