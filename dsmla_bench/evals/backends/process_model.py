"""An lm-eval model in a process of its own: for engines that give their GPU back only when their process ends.

``ProcessModel`` is the parent's end. The child runs this module (``python -m``), with lm-eval's name of a model and its
arguments in JSON. Both talk in lines of JSON: ``[method, arguments]`` down, and
``{"answer": …}`` or ``{"error": …}`` up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from dsmla_bench.error_text import typed_line

SCORING = ("loglikelihood", "loglikelihood_rolling", "generate_until")
READY = "ready"


class ProcessModel(LM):  # type: ignore[misc]  # lm-eval carries no types
    """lm-eval's model ``name`` made with ``arguments`` in a new process.

    Raises ValueError, with the child's last words, when it cannot be made, or ends while it is asked something.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until ``close``
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, name, json.dumps(dict(arguments))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # Ctrl-C is the parent's to answer
        )
        if self._answer() != READY:
            self._fail("cannot be started")

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """See lm-eval's ``LM``."""
        return [(float(value), bool(greedy)) for value, greedy in self._score("loglikelihood", requests)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """See lm-eval's ``LM``."""
        return [float(value) for value in self._score("loglikelihood_rolling", requests)]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """See lm-eval's ``LM``."""
        return [str(text) for text in self._score("generate_until", requests)]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """See lm-eval's ``LM``."""
        return str(self._ask("apply_chat_template", [chat_history, add_generation_prompt]))

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """See lm-eval's ``TemplateLM``."""
        template = self._ask("chat_template", [chat_template])
        return None if template is None else str(template)

    def close(self) -> None:
        """End the child and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            assert stream is not None
            with contextlib.suppress(OSError):  # a dead child's input may still hold the question
                stream.close()

    def _score(self, method: str, requests: Sequence[Instance]) -> list[Any]:
        return list(self._ask(method, [list(request.args) for request in requests]))

    def _ask(self, method: str, arguments: list[Any]) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("has ended")
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._fail("has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(f"the model's process failed: {answer['error']}")
        return answer["answer"]

    def _fail(self, what: str) -> None:
        self._process.wait()
        self._said.seek(0)
        lines = [line.strip() for line in self._said if line.strip()] or ["nothing"]
        raise ValueError(
            f"the model's process {what} (exit code {self._process.returncode}); it said: {lines[-1]:.300}"
        )


def serve(lm: LM, questions: IO[str], answers: IO[str]) -> None:
    """Answer every question until there are no more."""
    _say(answers, answer=READY)
    for line in questions:
        method, arguments = json.loads(line)
        try:
            if method in SCORING:
                arguments = [[Instance(method, {}, tuple(args), number) for number, args in enumerate(arguments)]]
            _say(answers, answer=getattr(lm, method)(*arguments))
        except Exception as error:  # whatever an engine raises belongs to the question, which the parent reports
            _say(answers, error=typed_line(error))


def _say(answers: IO[str], **answer: Any) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """The child: a model's name and its arguments."""
    from lm_eval.api.registry import get_model

    # Engines print to standard output; the answers must be the only thing on it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(get_model(sys.argv[1])(**json.loads(sys.argv[2])), sys.stdin, answers)


if __name__ == "__main__":
    main()
