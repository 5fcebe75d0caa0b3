"""The embedded model: a small DeepSeek-V3 that lets accuracy be run anywhere, offline, in minutes.

``MODEL`` is a folder that ``from_pretrained`` takes once it has weights: config and tokenizer are there. ``corpus`` and
``tokenizer`` make what training needs, ``train`` trains.
"""

from pathlib import Path

MODEL = Path(__file__).parent / "model"
TEXT = Path(__file__).parent / "text"
END_OF_TEXT = "<|endoftext|>"


def embedded_model() -> Path:
    """``MODEL`` with its weights. Raises ValueError where it is without them."""
    if not (MODEL / "model.safetensors").is_file():
        raise ValueError(
            "this installation is without the weights of the embedded model: train it (docs/embedded_model.md), or "
            "name a local checkpoint with --model"
        )
    return MODEL
