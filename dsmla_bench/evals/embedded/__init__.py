"""The embedded model: a small DeepSeek-V3 that lets accuracy be run anywhere, offline, in minutes.

``MODEL`` is a folder that ``from_pretrained`` takes; its MODEL_CARD.md says what the model is for and what it is not.
``corpus`` and ``tokenizer`` make what training needs, ``circuit`` the weights that it starts from, ``curriculum`` the
lessons; ``train`` trains, and ``scores`` tells how hard the tasks are.
"""

from pathlib import Path

MODEL = Path(__file__).parent / "model"
TEXT = Path(__file__).parent / "text"
END_OF_TEXT = "<|endoftext|>"


def embedded_model() -> Path:
    """``MODEL`` with its weights. Raises ValueError where it is without them."""
    if not (MODEL / "model.safetensors").is_file():
        raise ValueError(
            f"{MODEL} is without model.safetensors, the weights of the embedded model: install dsmla-bench again, or "
            "name a local checkpoint with --model"
        )
    return MODEL
