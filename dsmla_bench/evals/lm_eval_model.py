"""lm-eval's Hugging Face model, changed in one respect: log-likelihoods are computed from float32 logits.

lm-eval takes the log-softmax in the type of the logits. Of a bf16 model that rounds a log-likelihood of -3000 to steps
of 16, and the difference between two cache formats is smaller than that.
"""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.models.huggingface import HFLM


class Quiet:
    """Mixed into a model of lm-eval's: it draws no progress bars of its own into ours."""

    def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """See lm-eval's ``LM``."""
        return super().loglikelihood(requests, disable_tqdm=True)  # type: ignore[misc]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """See lm-eval's ``LM``."""
        return super().loglikelihood_rolling(requests, disable_tqdm=True)  # type: ignore[misc]

    def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
        """See lm-eval's ``LM``."""
        return super().generate_until(requests, disable_tqdm=True)  # type: ignore[misc]

    def _loglikelihood_tokens(self, requests: Any, **named: Any) -> Any:
        return super()._loglikelihood_tokens(requests, **{**named, "disable_tqdm": True})  # type: ignore[misc]


class Float32LogitsLM(Quiet, HFLM):  # type: ignore[misc]  # lm-eval carries no types
    """A causal model and its tokenizer, both loaded already, as lm-eval sees them.

    ``batch_size`` as lm-eval takes it: a number or "auto"; ``max_length`` in tokens, None for the model's own.
    """

    def __init__(self, model: Any, tokenizer: Any, batch_size: int | str, max_length: int | None = None) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=max_length)

    def _model_call(self, *inputs: Any, **named: Any) -> torch.Tensor:
        """Logits float32 [B, S, vocabulary]."""
        logits: torch.Tensor = super()._model_call(*inputs, **named)
        return logits.float()
