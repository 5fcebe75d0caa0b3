"""A worker process: reads cases from standard input, one JSON object a line, answers each with one Measurement.

Its first line is ``begin``: until then the child makes its bench, which leaves the device alone, so that a worker can
be prepared while the one before it still measures. ``Worker`` is the parent's end. The child is
``python -m dsmla_bench.bench.worker KIND``, with KIND one of

    cuda        gate and time on a CUDA device
    interpret   gate in Triton's interpreter (the parent sets TRITON_INTERPRET=1)
    compile     cross-compile

A kernel that hangs or kills its process costs the row it belongs to and nothing else: the parent answers that case with
status ``timeout`` or ``runtime_error`` and the error's text, and the next case finds a fresh process. A process that
reports a runtime error ends itself, because a CUDA error is sticky: every later call in that process would fail too.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from dsmla_bench.error_text import typed_line
from dsmla_bench.rows import Case, Measurement

BEGIN, READY = "begin", "ready"
KEPT_ERROR_LINES = 100
LONGEST_ANSWER = 2**24
"""Characters of a line; a longer one is no measurement, and must not fill the parent's memory."""
ALLOWED_FAILED_STARTS = 2
"""After so many starts in a row that failed, every further case gets the last one's reason at once."""
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""How the line of a traceback begins that names the exception; torch lets lines of advice follow."""
PR_SET_PDEATHSIG = 1
KINDS = {
    "cuda": ("dsmla_bench.bench.measure", "cuda_bench"),
    "interpret": ("dsmla_bench.bench.offline", "InterpretBench"),
    "compile": ("dsmla_bench.bench.offline", "CompileBench"),
}


@dataclass(frozen=True)
class WorkerConfig:
    """How a worker is started. ``libraries`` maps providers to compiled operator libraries; times are in seconds.

    ``device`` is the index of the device to measure on, which the child sees alone and as its device 0;
    ``device_columns`` is what every row says of it, and ``machine`` the module that knows the devices that there are
    (``bench.gpus.Machine``).

    ``methods`` are timed in this order, the first one being the headline.
    A ``kind`` of the form "module:class" names a bench that is not one of KINDS (a fake device, say).
    """

    kind: str
    process: int = 0
    seed: int = 0
    device: int = 0
    device_columns: Mapping[str, Any] = field(default_factory=dict)
    machine: str = "dsmla_bench.bench.manifest"
    libraries: Mapping[str, str] = field(default_factory=dict)
    methods: Sequence[str] = ("activity", "graph")
    start_timeout_s: float = 300.0
    case_timeout_s: float = 120.0

    def library_paths(self) -> dict[str, Path]:
        """``libraries`` as paths."""
        return {provider: Path(path) for provider, path in self.libraries.items()}


class Bench(Protocol):
    """What a worker runs: see ``MeasureBench``, ``InterpretBench`` and ``CompileBench``."""

    def begin(self) -> None:
        """Take the device, once, before the first case; until then it belongs to another process."""
        ...

    def measure(self, case: Case) -> Measurement:
        """Everything about one case, failures included."""
        ...


class Worker:
    """The parent's end of one worker process; starts it when first asked and again after it died."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._errors: deque[str] = deque(maxlen=KEPT_ERROR_LINES)
        self._ready = False
        self._failed_starts: list[tuple[str, str]] = []

    def prepare(self) -> None:
        """Start the child without waiting for it. It leaves the device alone until the first case is asked."""
        if self._process is None:
            self._spawn()

    def measure(self, case: Case) -> Measurement:
        """The child's measurement of ``case``, or the status that says how the child failed."""
        measurement = self._measure(case)
        return dataclasses.replace(measurement, facts={**self.config.device_columns, **measurement.facts})

    def _measure(self, case: Case) -> Measurement:
        if not self._ready:
            if len(self._failed_starts) >= ALLOWED_FAILED_STARTS:
                return self._failed(case, *self._failed_starts[-1])
            failure = self._start()
            if failure is not None:
                self._failed_starts.append(failure)
                return self._failed(case, *failure)
            self._failed_starts.clear()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self._failed(
                case, "runtime_error", f"the worker process died before this case; {self._last_error()}"
            )
        answer = self._answer(self.config.case_timeout_s)
        if answer is None:
            return self._failed(case, *self._why_no_answer(self.config.case_timeout_s))
        try:
            measurement = Measurement.from_json(answer)
        except ValueError:
            return self._failed(case, "runtime_error", f"the worker process gave no measurement but {answer[:200]!r}")
        if (measurement.case, measurement.process) != (case, self.config.process):
            return self._failed(case, "runtime_error", "the worker process answered another case than it was asked")
        if measurement.status == "runtime_error":
            self.stop()
        return measurement

    def stop(self) -> None:
        """End the child and all that it started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(OSError):  # a dead child's stdin may still hold the question
                stream.close()
        self._process, self._ready = None, False

    def interrupt(self) -> None:
        """End the child from another thread than the one that asks it, which is then answered that it died."""
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self) -> tuple[str, str] | None:
        """Start the child and wait until it is ready; status and reason when it never is."""
        self.prepare()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died while it was prepared, which the missing answer shows
            self._process.stdin.write(BEGIN + "\n")
            self._process.stdin.flush()
        answer = self._answer(self.config.start_timeout_s)
        self._ready = answer == READY
        if answer is not None and not self._ready:
            return "runtime_error", f"the worker process did not say that it is ready but {answer[:200]!r}"
        return None if self._ready else self._why_no_answer(self.config.start_timeout_s)

    def _spawn(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        environment["CUDA_VISIBLE_DEVICES"] = _visible(self.config.device)
        environment.pop("TRITON_INTERPRET", None)
        if self.config.kind == "interpret":
            environment["TRITON_INTERPRET"] = "1"
        # -P: the child imports what the parent imports, whatever lies in the folder that it is started in.
        command = [sys.executable, "-P", "-m", "dsmla_bench.bench.worker", json.dumps(dataclasses.asdict(self.config))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,  # Ctrl-C is the parent's to answer, and a kill reaches the child's children too
        )
        self._answers, self._errors = queue.Queue(), deque(maxlen=KEPT_ERROR_LINES)
        for pump, stream, target in (
            (_pump, self._process.stdout, self._answers),
            (_keep, self._process.stderr, self._errors),
        ):
            threading.Thread(target=pump, args=(stream, target), daemon=True).start()

    def _answer(self, timeout_s: float) -> str | None:
        """The child's next line; None when it died or said nothing in time."""
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _why_no_answer(self, timeout_s: float) -> tuple[str, str]:
        """Status and reason of a missing answer: a child that closed its output is ending, any other one hangs."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "timeout", f"no answer within {timeout_s:g} s; the worker process was ended"
        return "runtime_error", f"the worker process died (exit code {code}); {self._last_error()}"

    def _failed(self, case: Case, status: str, reason: str) -> Measurement:
        self.stop()
        return Measurement(case, self.config.process, status, reason)

    def _last_error(self) -> str:
        """The last line that the child wrote to standard error, or of an exception's lines the one that names it."""
        lines = [line.rstrip() for line in tuple(self._errors) if line.strip()]
        said = next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1] if lines else "")
        return f"it said: {said.strip()[:500]}" if lines else "it said nothing"


def _visible(index: int) -> str:
    """CUDA_VISIBLE_DEVICES of a child that is to see nothing but this process's device ``index``."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(index) if seen is None else seen.split(",")[index].strip()


def _pump(stream: IO[str], answers: queue.Queue[str | None]) -> None:
    """Hand the child's lines to the parent; None when the stream ends."""
    with contextlib.suppress(ValueError):  # the parent closes the stream when it ends the child
        for line in iter(lambda: stream.readline(LONGEST_ANSWER), ""):
            answers.put(line.rstrip("\n"))
    answers.put(None)


def _keep(stream: IO[str], errors: deque[str]) -> None:
    """Keep the last lines that the child wrote to standard error."""
    with contextlib.suppress(ValueError):  # the parent closes the stream when it ends the child
        errors.extend(stream)


def serve(bench: Bench, process: int, questions: IO[str], answers: IO[str]) -> None:
    """Begin, and answer every case until the questions end or an error leaves this process unusable."""
    bench.begin()
    print(READY, file=answers, flush=True)
    for line in questions:
        case = Case(**json.loads(line))
        try:
            measurement = bench.measure(case)
        except Exception as error:  # whatever a kernel or an operator raises belongs to the row, not to the sweep
            measurement = Measurement(case, process, "runtime_error", typed_line(error))
        print(measurement.to_json(), file=answers, flush=True)
        if measurement.status == "runtime_error":
            return


def _die_with_parent() -> None:
    """Ask Linux to end this process when the parent is killed, which may be in the middle of a case that hangs."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """The child: the configuration is the only argument."""
    config = WorkerConfig(**json.loads(sys.argv[1]))
    _die_with_parent()
    # Libraries print to standard output; the answers must be the only thing on it.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, name = KINDS[config.kind] if config.kind in KINDS else config.kind.split(":")
    bench = getattr(importlib.import_module(module), name)(config)
    if sys.stdin.readline().strip() == BEGIN:
        serve(bench, config.process, sys.stdin, answers)


if __name__ == "__main__":
    main()
