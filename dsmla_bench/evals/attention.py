"""What attention sees: logits, softmax weights and output of sparse attention over what a reader gets of the cache.

MLA in its absorbed form: a query of a head is [q_nope, q_pe] in the latent's space, a token's key is [kv_c, k_pe], its
value kv_c. A query attends to its top-k tokens, as a sparse indexer selects them; the indexer has a cache of its own,
so the selection is made from the unrounded latents and is the same for every format. All of it in float64 on the CPU.

Queries (``draw_queries``): a head's query is noise plus a pull towards a token of the context that all heads share, in
channels scaled to unit variance, so that no format gains by a channel's size:

    q = (g + 0.1 z) / rms,  g standard normal, z the token over rms, rms the root mean square of every channel

The softmax temperature is then set, once per data set and on the unrounded latents, so that the weights of a query are
spread over 64 tokens on average (the exponential of their entropy). The entropy reached is reported.

Compared with attention over the same tokens in fp32 ("fp32") and rounded to bf16 ("bf16"); figures are over all queries
and heads:

    logit_rms, logit_max       difference of the scaled logits of selected tokens, in nats
    kl_mean, kl_p99, kl_max    KL(weights of the reference || weights of the format), in nats
    output_rel_l2              sqrt(sum of squared differences / sum of squares) over all outputs
    output_worst               the largest such ratio of one query and head
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dsmla_bench.evals.data import generator
from dsmla_bench.kernels.formats import Geometry

QUERIES, HEADS, TOP_K, CONTEXT = 8, 16, 2048, 8192
EFFECTIVE_TOKENS, PULL = 64.0, 0.1


@dataclass(frozen=True)
class AttentionErrors:
    """Differences from one reference; the module docstring defines them. None where a value is not finite."""

    logit_rms: float | None
    logit_max: float | None
    kl_mean: float | None
    kl_p99: float | None
    kl_max: float | None
    output_rel_l2: float | None
    output_worst: float | None


@dataclass(frozen=True)
class Attended:
    """Results of attention: logits [Q, H, k], log of the weights [Q, H, k], outputs [Q, H, n], float64."""

    logits: torch.Tensor
    log_weights: torch.Tensor
    outputs: torch.Tensor


@dataclass(frozen=True)
class Probe:
    """Queries [Q, H, n + r], temperature included, and the tokens that each query selects, [Q, k]."""

    queries: torch.Tensor
    selected: torch.Tensor
    geometry: Geometry

    def attend(self, values: torch.Tensor) -> Attended:
        """Attention over tokens [T, n + r] of any dtype and device."""
        values = values.cpu().double()
        keys = values[self.selected]  # [Q, k, n + r]
        logits = torch.einsum("qhd,qkd->qhk", self.queries, keys)
        log_weights = logits.log_softmax(-1)
        outputs = torch.einsum("qhk,qkd->qhd", log_weights.exp(), keys[..., : self.geometry.kv_lora_rank])
        return Attended(logits, log_weights, outputs)


def draw_queries(latents: torch.Tensor, geometry: Geometry, seed: int) -> Probe:
    """Queries for a context of unrounded latents fp32 [T, n + r]; see the module docstring.

    Raises ValueError when there is no token, or a value is not finite.
    """
    context = latents.cpu().double()
    if not len(context) or not bool(context.isfinite().all()):
        raise ValueError("attention needs at least one token and finite values only")
    rms = context.square().mean(0).sqrt()
    rms = torch.where(rms > 0, rms, 1.0)
    drawn = generator(seed, "queries")
    noise = torch.randn(QUERIES, HEADS, context.shape[1], generator=drawn, dtype=torch.float64)
    targets = torch.randint(len(context), (QUERIES,), generator=drawn)
    queries = (noise + PULL * (context[targets] / rms)[:, None]) / rms
    logits = torch.einsum("qhd,td->qht", queries, context)
    count = min(TOP_K, len(context))
    temperature = _temperature(logits.topk(count, dim=-1).values)
    scores = (logits / temperature).log_softmax(-1).logsumexp(1)  # what all heads together attend to
    selected = scores.topk(count, dim=-1).indices.sort(-1).values
    temperature = _temperature(logits.gather(-1, selected[:, None].expand(-1, HEADS, -1)))
    return Probe(queries / temperature, selected, geometry)


def entropy(attended: Attended) -> float:
    """The mean entropy of the weights, in nats."""
    return float(_entropies(attended.log_weights).mean())


def compare(found: Attended, reference: Attended) -> AttentionErrors:
    """How ``found`` differs from ``reference``."""
    logits = found.logits - reference.logits
    weights = reference.log_weights.exp()
    # Below 0 by rounding alone.
    kl = (weights * (reference.log_weights - found.log_weights)).sum(-1).clamp(min=0).flatten()
    squared = (found.outputs - reference.outputs).square().sum(-1)
    powers = reference.outputs.square().sum(-1)
    ratios = (squared / powers)[powers > 0]
    return AttentionErrors(
        logit_rms=_finite(logits.square().mean().sqrt()),
        logit_max=_finite(logits.abs().max()),
        kl_mean=_finite(kl.mean()),
        kl_p99=_finite(kl.quantile(0.99)),
        kl_max=_finite(kl.max()),
        output_rel_l2=_finite((squared.sum() / powers.sum()).sqrt()),
        output_worst=_finite(ratios.max().sqrt()) if len(ratios) else None,
    )


def _temperature(logits: torch.Tensor) -> float:
    """What to divide logits [Q, H, k] by for an exp(mean entropy) of EFFECTIVE_TOKENS, or k / 2 where that is less."""
    wanted = math.log(min(EFFECTIVE_TOKENS, max(1.0, logits.shape[-1] / 2)))
    low, high = -40.0, 40.0
    for _ in range(50):
        middle = (low + high) / 2
        if float(_entropies((logits / 2.0**middle).log_softmax(-1)).mean()) < wanted:
            low = middle
        else:
            high = middle
    return float(2.0**high)


def _entropies(log_weights: torch.Tensor) -> torch.Tensor:
    return -(log_weights.exp() * log_weights).sum(-1)


def _finite(value: torch.Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
