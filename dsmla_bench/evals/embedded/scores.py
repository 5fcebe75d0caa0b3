"""What the embedded model scores on its tasks by size and cache format: the table that task sizes are chosen from.

Every stratum is a task at one size with documents that no training seed draws. A document is right when the model's
first choice is right at every token of the answer, read in one pass: what greedy decoding would give.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import Cache, DynamicLayer

from dsmla_bench.evals.embedded.curriculum import encoded, padded
from dsmla_bench.evals.tasks import copy, definitions, needle, prose, recall, variable_tracking
from dsmla_bench.evals.tasks.text import Part, held_out_definitions, held_out_prose
from dsmla_bench.kernels.formats import CacheFormat, Geometry, get_format

FORMATS = ("bf16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla")
BATCH_TOKENS = 65536


class Stratum(NamedTuple):
    """A task at one size: how a document of it is drawn."""

    task: str
    size: str
    draw: Callable[[random.Random], list[Part]]


def strata() -> Iterator[Stratum]:
    """The grid of tasks and sizes."""
    for pairs in (16, 32, 64, 128, 256, 512, 768, 1000):
        for symbols in (1, 2):
            if symbols == 2 or pairs <= 256:
                yield Stratum("recall", f"{pairs}x{symbols}", _recall(pairs, symbols))
    for chains, hops in ((4, 4), (8, 8), (16, 4), (16, 8), (16, 16), (32, 8), (32, 16), (64, 4), (64, 8)):
        yield Stratum("variable_tracking", f"{chains}x{hops}", _variable_tracking(chains, hops))
    for length, alphabet in ((32, 8), (64, 8), (64, 64), (128, 8), (128, 32), (256, 16), (256, 256), (384, 64)):
        yield Stratum("copy", f"{length}of{alphabet}", _copy(length, alphabet))
    for characters in (500, 1000, 2000, 4000, 8000):
        for needles in (1, 8):
            yield Stratum("needle", f"{characters}x{needles}", _needle(characters, needles))
    for entries in (4, 8, 16, 32, 64):
        yield Stratum("definitions", f"{entries}", _definitions(entries))
    yield Stratum("prose", "2000", lambda rng: prose.draw(rng, held_out_prose(), 2000))


def score(model: Any, documents: int, seed: int) -> Iterator[dict[str, Any]]:
    """A line per stratum: per format exact answers, KL divergence from bf16 and loss, the last two per answer token."""
    for stratum in strata():
        name = f"score/{seed}/{stratum.task}/{stratum.size}"
        drawn = [stratum.draw(random.Random(f"{name}/{index}")) for index in range(documents)]
        tokens, answers = padded(encoded(drawn))
        reference = None
        line: dict[str, Any] = {"task": stratum.task, "size": stratum.size, "length": tokens.shape[1]}
        for fmt in FORMATS:
            found = _forward(model, tokens, answers, get_format(fmt))
            reference = found if reference is None else reference
            line[fmt] = _figures(found, reference, tokens, answers)
        yield line


def _forward(model: Any, tokens: np.ndarray, answers: np.ndarray, fmt: CacheFormat) -> torch.Tensor:
    """Log-probabilities [answer tokens, vocabulary] in fp32."""
    rows = max(1, BATCH_TOKENS // tokens.shape[1])
    found = []
    for start in range(0, len(tokens), rows):
        ids = torch.from_numpy(tokens[start : start + rows]).to(model.device)
        wanted = torch.from_numpy(answers[start : start + rows]).to(model.device)
        cache = Cache(layers=[_SimulatedLayer(fmt) for _ in range(model.config.num_hidden_layers)])
        with torch.no_grad():
            hidden = model.model(input_ids=ids, past_key_values=cache, use_cache=True)[0]
            logits = model.lm_head(hidden[:, :-1][wanted[:, 1:]]).float()
        found.append(logits.log_softmax(-1))
    return torch.cat(found)


def _figures(found: torch.Tensor, reference: torch.Tensor, tokens: np.ndarray, answers: np.ndarray) -> dict[str, float]:
    gold = torch.from_numpy(tokens[:, 1:][answers[:, 1:]]).to(found.device)
    right = (found.argmax(-1) == gold).cpu().numpy()
    document = np.nonzero(answers[:, 1:])[0]
    wrong = np.bincount(document, ~right, minlength=len(tokens))
    kl = (reference.exp() * (reference - found)).sum(-1)
    return {
        "exact": float((wrong == 0).mean()),
        "tokens_right": float(right.mean()),
        "nll": float(-found.gather(-1, gold[:, None]).mean()),
        "kl": float(kl.mean()),
        "same_choice": float((found.argmax(-1) == reference.argmax(-1)).float().mean()),
    }


class _SimulatedLayer(DynamicLayer):
    """A cache layer whose latent and RoPE key went through a format."""

    def __init__(self, fmt: CacheFormat) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fmt = fmt

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """``key_states`` is the latent [B, 1, S, 512] and ``value_states`` the RoPE key [B, 1, S, 64]."""
        width, rope = key_states.shape[-1], value_states.shape[-1]
        one = torch.ones(1, device=key_states.device)
        rows = self.fmt.quantize(key_states.reshape(-1, width), value_states.reshape(-1, rope), one)
        kv_c, k_pe = self.fmt.dequantize(rows, Geometry(width, rope), one)
        return super().update(kv_c.view_as(key_states), k_pe.view_as(value_states), *args, **kwargs)


def _recall(pairs: int, symbols: int) -> Callable[[random.Random], list[Part]]:
    return lambda rng: recall.draw(rng, pairs, symbols, 1)


def _variable_tracking(chains: int, hops: int) -> Callable[[random.Random], list[Part]]:
    return lambda rng: variable_tracking.draw(rng, chains, hops, 1)


def _copy(length: int, alphabet: int) -> Callable[[random.Random], list[Part]]:
    return lambda rng: copy.draw(rng, length, alphabet)


def _needle(characters: int, needles: int) -> Callable[[random.Random], list[Part]]:
    return lambda rng: needle.draw(rng, held_out_prose(), characters, needles, 1)


def _definitions(entries: int) -> Callable[[random.Random], list[Part]]:
    return lambda rng: definitions.draw(rng, held_out_definitions(), entries, 1)
