"""A worker's bench that breaks the protocol. Needs neither torch nor a GPU, and so starts at once.

What it does is the provider of the case: ``garbage`` answers no measurement, ``another`` another case, ``impostor`` as
another process, ``leave`` answers and is gone, ``loud`` prints before it answers, ``quiet`` dies without a word; any
other is answered as asked.
"""

import dataclasses
import os
from types import SimpleNamespace

from dsmla_bench.rows import Measurement


class UnrulyBench:
    def __init__(self, config):
        self.config = config

    def begin(self):
        pass

    def measure(self, case):
        right = Measurement(case, self.config.process, "ok", samples={"graph": [1.0]})
        if case.provider == "garbage":
            return SimpleNamespace(to_json=lambda: "Hello", status="ok")
        if case.provider == "another":
            return dataclasses.replace(right, case=dataclasses.replace(case, tokens=case.tokens + 1))
        if case.provider == "impostor":
            return dataclasses.replace(right, process=right.process + 1)
        if case.provider == "leave":
            return LeavingAnswer(right.to_json())
        if case.provider == "loud":
            print("a library's words")
        if case.provider == "quiet":
            os._exit(7)
        return right


class LeavingAnswer:
    """An answer after which the process is gone: whoever sent it looks at its status."""

    def __init__(self, text):
        self._text = text

    def to_json(self):
        return self._text

    @property
    def status(self):
        os._exit(7)
