"""A model as a source of the error lab: the latents of each of its layers, captured while it reads a text.

The model is a folder of a transformers checkpoint with safetensors and its tokenizer; nothing is downloaded, and code
that comes with it runs only when that is asked for. The text is cut into windows of ``WINDOW`` tokens, or the model's
maximum where that is shorter.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsmla_bench.evals.accuracy_environment import require_extra, set_environment
from dsmla_bench.evals.data import BLOCK_TOKENS
from dsmla_bench.evals.embedded import TEXT
from dsmla_bench.evals.model_files import find_model
from dsmla_bench.kernels.formats import Geometry

WINDOW = 1024
DEFAULT_TEXT = TEXT / "prose.txt"


@dataclass(frozen=True)
class FromLayer:
    """What one layer of a model cached: ``values`` bf16 [tokens, n + r] on the CPU."""

    layer: int
    values: torch.Tensor
    geometry: Geometry
    kind: str = "model"
    sigma: float | None = None

    @property
    def name(self) -> str:
        """``layer 12``."""
        return f"layer {self.layer}"

    @property
    def tokens(self) -> int:
        """Tokens captured."""
        return len(self.values)

    def block(self, number: int) -> torch.Tensor:
        """Rows of one block, fp32 [<= BLOCK_TOKENS, width]."""
        return self.values[number * BLOCK_TOKENS : (number + 1) * BLOCK_TOKENS].float()


@dataclass(frozen=True)
class ModelText:
    """A model and what it reads: the folder of a checkpoint, and a UTF-8 file; None: the project's own prose."""

    folder: Path
    text: Path | None = None
    device: str = "cpu"
    trust_remote_code: bool = False

    def require(self, geometry: Geometry, tokens: int) -> None:
        """Raise ValueError, without reading weights, where ``layers`` could not give ``tokens`` of this geometry."""
        found = self._backend.geometry
        if found != geometry:
            raise ValueError(f"{self.folder}: its latents are {found}, and these formats are measured with {geometry}")
        self._windows(tokens)

    def layers(self, tokens: int) -> list[FromLayer]:
        """The first ``tokens`` latents of every layer. Holds all of them in memory, 1152 bytes each in DeepSeek-V3.2.

        Raises ValueError for a model that cannot be loaded or has no latents, and for a text that is too short.
        """
        from dsmla_bench.evals.latents import captured_latents

        geometry = self._backend.geometry
        captured = captured_latents(self._backend.loaded, self._windows(tokens), batch_size=1)
        return [FromLayer(layer, values[:tokens], geometry) for layer, values in captured.items()]

    @functools.cached_property
    def _backend(self) -> Any:
        require_extra()
        set_environment(online=False)
        from dsmla_bench.evals.backends.sim import SimBackend

        folder = find_model(str(self.folder), online=False)
        return SimBackend(folder, folder, device=self.device, trust_remote_code=self.trust_remote_code)

    def _windows(self, tokens: int) -> torch.Tensor:
        """Token ids int64 [N, L] of the beginning of the text, ``tokens`` of them or some more."""
        path, length = self.text or DEFAULT_TEXT, self._window
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: is no text in UTF-8 ({error.reason} at byte {error.start})") from error
        ids = torch.tensor(self._backend.loaded_tokenizer(text, verbose=False).input_ids, dtype=torch.int64)
        wanted = math.ceil(tokens / length) * length
        if len(ids) < wanted:
            raise ValueError(f"{path}: has {len(ids)} tokens of this model, and {wanted} are needed; ask for fewer")
        return ids[:wanted].view(-1, length)

    @property
    def _window(self) -> int:
        """Tokens that the model reads at once."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self._backend.model, trust_remote_code=self.trust_remote_code)
        return min(WINDOW, getattr(config.get_text_config(decoder=True), "max_position_embeddings", WINDOW))
