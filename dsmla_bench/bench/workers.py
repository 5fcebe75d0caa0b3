"""The workers of one device, one after another. Needs no torch, as a cluster's actors need none."""

from __future__ import annotations

import dataclasses

from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.rows import Case, Measurement


class Workers:
    """The workers of one device: a fresh one for every process, and the next one prepared while one measures."""

    def __init__(self, config: WorkerConfig, processes: int) -> None:
        self.config, self._processes = config, processes
        self._alive: dict[int, Worker] = {}

    def measure(self, case: Case, process: int) -> Measurement:
        """The measurement of ``case`` by the worker of ``process``."""
        wanted = range(process, min(process + 2, self._processes))
        for number in self._alive.keys() - set(wanted):
            self._alive.pop(number).stop()
        for number in wanted:
            if number not in self._alive:
                self._alive[number] = Worker(dataclasses.replace(self.config, process=number))
                self._alive[number].prepare()
        return self._alive[process].measure(case)

    def interrupt(self) -> None:
        """End the workers' processes from another thread than the one that asks them."""
        for worker in list(self._alive.values()):
            worker.interrupt()

    def close(self) -> None:
        """End the workers."""
        for worker in self._alive.values():
            worker.stop()
        self._alive.clear()
