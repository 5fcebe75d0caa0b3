"""The embedded model: a small DeepSeek-V3 that lets accuracy be run anywhere, offline, in minutes.

``MODEL`` is a folder that ``from_pretrained`` takes (config, tokenizer, weights in bf16); MODEL_CARD.md in it says what
the model is for and what it is not for. ``corpus`` and ``tokenizer`` make what training needs, ``train`` trains.
"""

from pathlib import Path

MODEL = Path(__file__).parent / "model"
TEXT = Path(__file__).parent / "text"
END_OF_TEXT = "<|endoftext|>"
