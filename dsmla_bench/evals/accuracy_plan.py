"""What an accuracy run computes: which formats and probes, by which backend, on which tasks, asked how."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsmla_bench.bench.manifest import describe, describe_device
from dsmla_bench.evals import lm_eval_tasks
from dsmla_bench.evals.backends import BACKENDS, Backend, Variant
from dsmla_bench.evals.codec import ABLATIONS
from dsmla_bench.evals.embedded import MODEL, embedded_model
from dsmla_bench.evals.judging import Margins
from dsmla_bench.evals.lm_eval_tasks import TaskRecipe
from dsmla_bench.evals.model_files import find_model, find_tokenizer
from dsmla_bench.evals.scores import BASELINE
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.places import Where
from dsmla_bench.results import Run, config_hash

if TYPE_CHECKING:
    from dsmla_bench.evals.simulated_cache import Prefill

EMBEDDED = "embedded"
PACKAGES = ("torch", "transformers", "lm-eval", "accelerate")


@dataclass(frozen=True)
class AccuracyPlan:
    """Formats × tasks by a backend. Raises ValueError, in one sentence, for what cannot be asked.

    model, tokenizer   "embedded", a folder, or a repository of the hub's; tokenizer None: the model's
    formats            as ``get_format`` takes them; bf16 is always among them. Of servers: the names in ``servers``
    servers            format → URL of its server
    tasks              "embedded" for this project's, names of lm-eval's, or folders of task YAML
    recipe             how tasks are asked
    ablate             those of ``formats`` whose parts are also quantized alone (backend sim)
    repeat             whether the baseline is also computed in other batches (A/A)
    batch_size         a number of sequences or "auto"; ``max_length`` in tokens, None: the model's
    prefill            "cache" or "fresh", as in ``simulated_cache`` (backend sim)
    device             "cpu" or "cuda" (backend sim)
    concurrent         requests to a server at once
    engine             further arguments of vLLM's engine (backend vllm)
    windows, window_tokens   of the fidelity pass (backend sim), 0 windows for none
    margins            the losses that do not matter; no part of what is computed
    online, trust_remote_code   whether the network may be used, and code that comes with a model may run
    """

    model: str = EMBEDDED
    tokenizer: str | None = None
    backend: str = "sim"
    formats: tuple[str, ...] = (BASELINE,)
    servers: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[str, ...] = (EMBEDDED,)
    recipe: TaskRecipe = field(default_factory=TaskRecipe)
    ablate: tuple[str, ...] = ()
    repeat: bool = True
    batch_size: int | str = 8
    max_length: int | None = None
    prefill: str = "cache"
    device: str = "cpu"
    concurrent: int = 8
    engine: Mapping[str, Any] = field(default_factory=dict)
    windows: int = 16
    window_tokens: int = 512
    margins: Margins = field(default_factory=Margins)
    online: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        self._require_one_backend()
        if not self.servers:
            for name in (*self.formats, *self.ablate):
                get_format(name)
        if isinstance(self.batch_size, str) and self.batch_size != "auto":
            raise ValueError(f"a batch size is a whole number or auto, found {self.batch_size!r}")
        if isinstance(self.batch_size, int) and self.batch_size < 1:
            raise ValueError(f"a batch size must be positive, found {self.batch_size}")
        if self.windows and self.window_tokens < 2:
            raise ValueError(f"a window needs two tokens at least, found {self.window_tokens}")

    def _require_one_backend(self) -> None:
        """Raise ValueError for an unknown backend, and for options that are another one's."""
        if self.backend not in BACKENDS:
            raise ValueError(f"no backend {self.backend!r}; available: {', '.join(BACKENDS)}")
        if bool(self.servers) != (self.backend == "server"):
            raise ValueError(
                "the backend server needs a server for every format (--server bf16=http://…), no other does"
            )
        if self.prefill not in ("cache", "fresh"):
            raise ValueError(f"prefill must be cache or fresh, found {self.prefill!r}")
        if self.prefill == "fresh" and self.backend != "sim":
            raise ValueError(f"what a prefill reads is up to {self.backend}; only --backend sim can choose it")
        if self.engine and self.backend != "vllm":
            raise ValueError("arguments of an engine are for --backend vllm only")

    @property
    def baseline(self) -> str:
        """The format that the others are held against: bf16, or the first server where none is called so."""
        return next(iter(self.servers)) if self.servers and BASELINE not in self.servers else BASELINE

    def variants(self) -> list[Variant]:
        """The baseline, its repeat, and every other format followed by its ablations."""
        made = [Variant(self.baseline, self.baseline)]
        if self.repeat:
            made.append(Variant(f"{self.baseline} (A/A)", self.baseline, repeat=True))
        for name in self.servers or self.formats:
            label = name if self.servers else short_name(name)
            if label != self.baseline:
                made.append(Variant(label, name))
            if name in self.ablate:
                made += [Variant(f"{label} ({words})", name, only=part) for part, words in ABLATIONS.items()]
        return list(dict.fromkeys(made))

    def load_tasks(self) -> dict[str, Any]:
        """Name → task. Raises ValueError for one that is unknown or whose data is missing."""
        names = [str(lm_eval_tasks.OURS) if name == EMBEDDED else name for name in self.tasks]
        return lm_eval_tasks.load_tasks(names, self.recipe, {"tokenizer": str(self.tokenizer_folder)})

    def make_backend(self) -> Backend:
        """The backend, which has not loaded the model yet. Raises ValueError when the model's files are missing."""
        if self.backend == "server":
            from dsmla_bench.evals.backends.server import ServerBackend

            return ServerBackend(dict(self.servers), self.tokenizer_folder, self.concurrent, self.max_length)
        named: dict[str, Any] = {
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "trust_remote_code": self.trust_remote_code,
        }
        if self.backend == "vllm":
            from dsmla_bench.evals.backends.vllm import VllmBackend

            return VllmBackend(self.model_folder, self.tokenizer_folder, engine=self.engine, **named)
        from dsmla_bench.evals.backends.sim import SimBackend

        prefill = cast("Prefill", self.prefill)
        return SimBackend(self.model_folder, self.tokenizer_folder, self.device, prefill=prefill, **named)

    @functools.cached_property
    def model_folder(self) -> Path:
        """Raises ValueError when there is none."""
        if self.model == EMBEDDED:
            return embedded_model()
        return find_model(self.model, online=self.online, with_code=self.trust_remote_code)

    @functools.cached_property
    def tokenizer_folder(self) -> Path:
        """Raises ValueError when there is none."""
        name = self.tokenizer or self.model
        return MODEL if name == EMBEDDED else find_tokenizer(name, online=self.online)

    @property
    def config(self) -> dict[str, Any]:
        """The plan as plain data."""
        return dataclasses.asdict(self)

    def manifest(self, devices: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """What the run's manifest says of the plan and of this machine, or of a cluster's ``devices``."""
        if not devices and self.device == "cuda" and self.backend != "server":
            devices = [describe_device(0)]
        device = {"device": devices[0], "devices": list(devices)} if devices else {}
        facts = {"kind": "accuracy", "argv": ["dsmla-bench", *sys.argv[1:]], **describe(), **device}
        return {**facts, "baseline": self.baseline, "config": self.config, "config_hash": config_hash(self.config)}

    def create_run(self, out: Where, devices: Sequence[dict[str, Any]] = ()) -> Run:
        """A new run folder below ``out``."""
        return Run.create(out, self.manifest(devices))

    def resume_run(self, path: Where, devices: Sequence[dict[str, Any]] = ()) -> Run:
        """The accuracy run at ``path``, to be gone on with as this plan says. Raises ValueError when it is none."""
        manifest = Run.load(path).manifest
        if manifest.get("kind") != "accuracy":
            raise ValueError(f"{path}: is no accuracy run; --resume takes the folder that dsmla-bench accuracy printed")
        run = Run.resume(path, manifest.get("config") or {})
        run.manifest.update(self.manifest(devices))
        run.write_manifest()
        return run


def short_name(text: str) -> str:
    """A format as tables call it: without its revision where that is the default one."""
    fmt = get_format(text)
    return fmt.name if fmt.default else fmt.key


@functools.cache
def computed_by() -> Mapping[str, Any]:
    """The versions and the code that the scores of this process rest on."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return {"packages": {name: version(name) for name in PACKAGES}, "code_sha256": digest.hexdigest()}
