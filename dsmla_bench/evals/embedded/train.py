"""Trains the embedded model, in four minutes on one H200.

    python -m dsmla_bench.evals.embedded.train --text .train --out trained --compile

writes ``log.jsonl`` (settings first, then progress), checkpoints in bf16 on the way and ``model.safetensors`` at the
end, and ``scores.jsonl``: the tasks by size and cache format. Weights are fp32 under bf16 autocast. Lessons are made by
worker processes and are a function of the seed and of the accuracies on the way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, DeepseekV3ForCausalLM

from dsmla_bench.evals.embedded import MODEL
from dsmla_bench.evals.embedded.circuit import write_circuit
from dsmla_bench.evals.embedded.curriculum import LESSONS_PER_STEP, Curriculum, Lesson, Text, batch
from dsmla_bench.evals.embedded.scores import score

LOG_EVERY_SECONDS = 5.0
WARM_UP_STEPS = 100
CHECKPOINTS = (0.5, 0.75)


def main() -> None:
    """Train, save, score; see the module docstring."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    model = new_model(torch.float32, "cpu")
    write_circuit(model)
    model = model.to(options.device)
    with (options.out / "log.jsonl").open("w", encoding="utf-8", buffering=1) as log:
        train(model, options, Log(log))
    save(model, options.out / "model.safetensors")
    with (options.out / "scores.jsonl").open("w", encoding="utf-8", buffering=1) as scores:
        for line in score(load(options.out / "model.safetensors", options.device), options.documents, options.seed):
            Log(scores)(line)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder that corpus.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="where log, weights and scores go")
    parser.add_argument("--seconds", type=float, default=240.0, help="training time; the learning rate ends at 0 there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=16384, help="tokens per lesson")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.4, help="share of the time over which the rate falls to 0")
    parser.add_argument("--workers", type=int, default=8, help="processes that make lessons")
    parser.add_argument("--documents", type=int, default=256, help="documents per stratum in scores.jsonl")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="compile the decoder layers")
    return parser.parse_args()


class Log:
    """JSON lines to a file, and to the terminal."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __call__(self, line: dict[str, Any]) -> None:
        """Write one line."""
        text = json.dumps(_rounded(line))
        self.file.write(text + "\n")
        print(text, flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return round(value, 5) if isinstance(value, float) else value


class Lessons(Dataset[tuple[Lesson, torch.Tensor, torch.Tensor]]):
    """Tokens and answers of a lesson."""

    def __init__(self, text: Text, tokens: int) -> None:
        self.text, self.tokens = text, tokens

    def __getitem__(self, lesson: Any) -> tuple[Lesson, torch.Tensor, torch.Tensor]:
        ids, answers = batch(lesson, self.text, self.tokens)
        return lesson, torch.from_numpy(ids), torch.from_numpy(answers)


def lessons(curriculum: Curriculum, options: argparse.Namespace) -> Iterator[tuple[Lesson, torch.Tensor, torch.Tensor]]:
    """The curriculum's lessons as tensors, made a few steps ahead."""
    made = DataLoader(
        Lessons(Text(options.text), options.tokens),
        sampler=curriculum,
        batch_size=None,
        num_workers=options.workers,
        prefetch_factor=2 if options.workers else None,
        pin_memory=options.device == "cuda",
    )
    return iter(made)


def train(model: Any, options: argparse.Namespace, log: Log) -> None:
    """Until the time is over."""
    if options.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=True)
    curriculum = Curriculum(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), 0.0, (0.9, 0.98), weight_decay=0.05)
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
    log(settings | {"parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__})
    progress, due = Progress(), list(CHECKPOINTS)
    pending: list[Outcome] = []
    source = lessons(curriculum, options)
    # Compiles, if it was asked to, so that the clock does not count it.
    step(model, optimizer, itertools.islice(source, LESSONS_PER_STEP), options.device)
    begin = time.monotonic()
    while (share := (time.monotonic() - begin) / options.seconds) < 1.0:
        rate = options.learning_rate * min(1.0, (progress.steps + 1) / WARM_UP_STEPS, (1.0 - share) / options.decay)
        for group in optimizer.param_groups:
            group["lr"] = rate
        outcomes = step(model, optimizer, itertools.islice(source, LESSONS_PER_STEP), options.device)
        # The step before has ended on the device by now, so reading its results does not hold this one up.
        for outcome in pending:
            curriculum.report(outcome.lesson, float(outcome.accuracy))
            progress.add(outcome)
        pending = outcomes
        progress.steps += 1
        if progress.is_due(time.monotonic()):
            log(progress.line(time.monotonic() - begin, rate, curriculum))
        if due and share >= due[0]:
            save(model, options.out / f"at_{due.pop(0):.2f}.safetensors")


class Outcome(NamedTuple):
    """What a lesson gave: its mean loss over answer tokens and the share of them that was right, on the device."""

    lesson: Lesson
    loss: torch.Tensor
    accuracy: torch.Tensor
    tokens: int


def step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    taught: Iterable[tuple[Lesson, torch.Tensor, torch.Tensor]],
    device: str,
) -> list[Outcome]:
    """One step of the optimizer over some lessons, each of the same weight."""
    optimizer.zero_grad(set_to_none=True)
    outcomes = []
    for lesson, ids, answers in taught:
        outcome = learn(model, lesson, ids.to(device, non_blocking=True), answers.to(device, non_blocking=True))
        (outcome.loss / LESSONS_PER_STEP).backward()
        outcomes.append(outcome._replace(loss=outcome.loss.detach()))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return outcomes


def learn(model: Any, lesson: Lesson, ids: torch.Tensor, answers: torch.Tensor) -> Outcome:
    """The forward pass of one lesson."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False)[0]
        logits = model.lm_head(hidden[:, :-1][answers[:, 1:]])
    wanted = ids[:, 1:][answers[:, 1:]]
    loss = torch.nn.functional.cross_entropy(logits.float(), wanted)
    return Outcome(lesson, loss, (logits.argmax(-1) == wanted).float().mean(), ids.numel())


class Progress:
    """Running figures by task, and when to say them."""

    def __init__(self) -> None:
        self.steps, self.tokens, self.last = 0, 0, time.monotonic()
        self.loss: dict[str, float] = {}
        self.accuracy: dict[str, float] = {}

    def add(self, outcome: Outcome) -> None:
        """Take in one lesson."""
        self.tokens += outcome.tokens
        task, loss, accuracy = outcome.lesson.task, float(outcome.loss), float(outcome.accuracy)
        self.loss[task] = 0.9 * self.loss.get(task, loss) + 0.1 * loss
        self.accuracy[task] = 0.9 * self.accuracy.get(task, accuracy) + 0.1 * accuracy

    def is_due(self, now: float) -> bool:
        """Whether to say them now."""
        if now - self.last < LOG_EVERY_SECONDS:
            return False
        self.last = now
        return True

    def line(self, seconds: float, rate: float, curriculum: Curriculum) -> dict[str, Any]:
        """One line of the log."""
        head = {"seconds": round(seconds, 1), "step": self.steps, "tokens_per_s": round(self.tokens / seconds)}
        tasks = {
            task: f"size {level.size:.0f} right {self.accuracy[task]:.3f} loss {self.loss[task]:.3f}"
            for task, level in curriculum.levels.items()
            if task in self.loss
        }
        return head | {"rate": rate} | tasks


def save(model: Any, path: Path) -> None:
    """The weights in bf16; the head is the embedding and left out."""
    weights = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    del weights["lm_head.weight"]
    save_file(weights, path, metadata={"format": "pt"})


def load(path: Path, device: str) -> Any:
    """A model in bf16 with the weights of a file that ``save`` wrote."""
    model = new_model(torch.bfloat16, device)
    model.load_state_dict(load_file(path, device), strict=False)
    model.tie_weights()
    return model.eval()


def new_model(dtype: torch.dtype, device: str) -> Any:
    """The architecture of ``model/config.json`` with random weights."""
    model: Any = DeepseekV3ForCausalLM(AutoConfig.from_pretrained(MODEL))
    return model.to(dtype).to(device)


if __name__ == "__main__":
    main()
