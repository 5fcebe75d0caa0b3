"""The weights that training starts from: the first two layers already find where something was said before.

Without it most of training is a plateau: a model has to find both halves of an induction circuit before either helps.
Here they are written down, answer four of five recall questions as they are, and training has to keep and sharpen them:

    layer 0  head 0 attends to the token before and notes its embedding in the residual, head 1 to the one before that;
             both by the RoPE part alone
    layer 1  head 0 attends to where the token before was the present one, head 1 to where the two before were the
             present one and the one before it; both by the NoPE part alone. They add the embedding of the token there:
             what came next the last time

The hidden state holds, in this order, the token's embedding, a constant (queries and keys of layer 0 need one) and the
two notes. Everything else that writes to the residual starts at zero: the other heads and layers, and all MLPs.

Gains are such that the right position scores about 8 above all others, among thousands. Rotations are those of the
architecture with ``rope_interleave``: dimensions 2i and 2i + 1 turn by θ_i = theta^(-2i / rope_dim) a position.
"""

from __future__ import annotations

from typing import Any

import torch

WIDTH = 84
TOKEN, CONSTANT, BEFORE, TWO_BEFORE = 0, 84, 85, 169
"""Where the parts of the hidden state begin; all are ``WIDTH`` wide but the constant."""
EMBEDDING_STD = 0.08
CONSTANT_STDS = 4.0
"""The constant, in standard deviations of the embedding."""
POSITION_GAIN, MATCH_GAIN = 1.5, 1.8
"""Of queries and of keys, in layer 0 and in layer 1."""
ADDED_STDS = 2.0
"""What each head of layer 1 adds, in standard deviations of the embedding."""
TURNING = 16
"""Pairs of RoPE dimensions that tell neighbours apart; the others turn too slowly."""


@torch.no_grad()
def write_circuit(model: Any) -> None:
    """Replace weights of a fresh DeepseekV3ForCausalLM of this package's config, on the CPU; the others stay."""
    embedding = model.model.embed_tokens.weight
    # All of one length: else the constant differs after the norm, and with it how much a token is attended to.
    directions = torch.nn.functional.normalize(torch.randn_like(embedding[:, _part(TOKEN)]), dim=-1)
    embedding.zero_()
    embedding[:, _part(TOKEN)] = directions * EMBEDDING_STD * WIDTH**0.5
    embedding[:, CONSTANT] = EMBEDDING_STD * CONSTANT_STDS
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    first, second = (Heads(layer.self_attn) for layer in model.model.layers[:2])
    first.keep((TOKEN,))
    first.mark_positions()
    first.attend_back(0, distance=1, note=BEFORE)
    first.attend_back(1, distance=2, note=TWO_BEFORE)
    second.keep((TOKEN, BEFORE, TWO_BEFORE))
    second.attend_where(0, {TOKEN: BEFORE})
    second.attend_where(1, {TOKEN: BEFORE, BEFORE: TWO_BEFORE})


class Heads:
    """The attention of a layer, whose weights it writes."""

    def __init__(self, attention: Any) -> None:
        config = attention.config
        self.nope, self.rope, self.rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
        heads = config.num_attention_heads
        self.query = attention.q_proj.weight.unflatten(0, (heads, self.nope + self.rope))
        self.down = attention.kv_a_proj_with_mqa.weight
        self.up = attention.kv_b_proj.weight.unflatten(0, (heads, self.nope + config.v_head_dim))
        self.out = attention.o_proj.weight.unflatten(1, (heads, config.v_head_dim))
        self.kept: dict[int, slice] = {}
        self.turns = config.rope_parameters["rope_theta"] ** (-torch.arange(TURNING) * 2 / self.rope)
        self.pairs = 2 * torch.arange(TURNING)

    def keep(self, parts: tuple[int, ...]) -> None:
        """Give the latent these parts of the hidden state, one after another, and nothing else."""
        self.down[: self.rank] = 0
        for number, part in enumerate(parts):
            self.kept[part] = _part(number * WIDTH)
            self.down[self.kept[part], _part(part)] = torch.eye(WIDTH)

    def mark_positions(self) -> None:
        """Keys that differ by their rotation alone."""
        self.down[self.rank :] = 0
        self.down[self.rank + self.pairs, CONSTANT] = POSITION_GAIN

    def attend_back(self, head: int, distance: int, note: int) -> None:
        """Attend so many tokens back, and note the embedding there."""
        self.query[head] = 0
        self.query[head, self.nope + self.pairs, CONSTANT] = POSITION_GAIN * (distance * self.turns).cos()
        self.query[head, self.nope + self.pairs + 1, CONSTANT] = -POSITION_GAIN * (distance * self.turns).sin()
        self.up[head] = 0
        self._add_token(head, note, 1.0)

    def attend_where(self, head: int, equal: dict[int, int]) -> None:
        """Attend to where, for each entry, the second part is what the first is here; add the embedding there."""
        compared = len(equal) * WIDTH
        mixed = torch.linalg.qr(torch.randn(compared, self.nope)).Q.T * (compared / self.nope) ** 0.5
        self.query[head] = 0
        self.up[head] = 0
        for (here, there), mix in zip(equal.items(), mixed.split(WIDTH, dim=1), strict=True):
            self.query[head, : self.nope, _part(here)] = mix * MATCH_GAIN
            self.up[head, : self.nope, self.kept[there]] = mix * MATCH_GAIN
        self._add_token(head, TOKEN, ADDED_STDS)

    def _add_token(self, head: int, part: int, stds: float) -> None:
        self.up[head, self.nope : self.nope + WIDTH, self.kept[TOKEN]] = torch.eye(WIDTH)
        # The latent's norm makes its used dimensions this large, the others being zero.
        latent_std = (self.rank / (len(self.kept) * WIDTH)) ** 0.5
        self.out[_part(part), head, :WIDTH] = torch.eye(WIDTH) * stds * EMBEDDING_STD / latent_std


def _part(start: int) -> slice:
    return slice(start, start + WIDTH)
