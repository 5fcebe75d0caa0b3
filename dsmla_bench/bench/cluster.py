"""The GPUs of a Ray cluster. The only file that talks to Ray, which is imported when a cluster is opened.

Every node is asked what its GPUs are: an actor per GPU (``cluster_host.Host``) is started there, and tells. So nodes
need no custom resources, and what is known of a GPU is what its own process sees. The actor then holds the GPU, alone,
until it is released. The package is sent along, and an actor that runs another version of it is refused.
"""

from __future__ import annotations

import importlib
import logging
import socket
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dsmla_bench
from dsmla_bench.bench.cluster_host import Host, code_sha256
from dsmla_bench.bench.fleet import LaneLostError
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.error_text import first_line
from dsmla_bench.rows import Case, Measurement

LISTENER_TIMEOUT_S, FIND_TIMEOUT_S, RESTART_TIMEOUT_S = 10.0, 120.0, 60.0
ALLOWED_RESTARTS = 3
"""Of one GPU's actor; after so many something is wrong with its node."""
SENT = {"py_modules": [str(Path(dsmla_bench.__file__).parent)], "excludes": ["**/__pycache__/**"]}
"""Ray's ``runtime_env``: this very package, under a name that is the hash of its content."""


@dataclass
class Seat:
    """One GPU of the cluster, what its manifest says, and the actor that holds it."""

    gpu: Gpu
    facts: dict[str, Any]
    node_id: str
    actor: Any
    restarts: int = 0


class Cluster:
    """A connection to the cluster at ``address``, or to the one of this machine ("auto").

    On each of its GPUs works an object that ``factory`` ("module:name") makes there of ``arguments``, in a process with
    these variables in its ``environment``; ``machine`` knows the devices there (``bench.gpus.Machine``). Raises
    ValueError, in one sentence, without Ray or a cluster.
    """

    def __init__(
        self,
        address: str,
        machine: str,
        factory: str,
        arguments: tuple[Any, ...],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._ray, self._recipe = _ray(), (machine, factory, arguments)
        sent = {**SENT, "env_vars": dict(environment or {})}
        try:
            _require_listener(address)
            self._ray.init(address=address, runtime_env=sent, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"--ray {address}: no Ray cluster can be used there ({first_line(_cause(error))}); start one with "
                "`ray start --head`, or give the address of its head"
            ) from error
        self.seats = self._find()

    def ask(self, seat: Seat, method: str, *arguments: Any) -> Any:
        """What the object at a seat answers. Raises LaneLostError when its process or node is gone."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(seat.actor.call.remote(method, *arguments))
        except errors.RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise ValueError(f"{seat.gpu}: {error.cause}") from error
            raise
        except errors.RayError as error:
            raise LaneLostError(first_line(_cause(error))) from error

    def restart(self, seat: Seat) -> bool:
        """Start a lost actor again on the same GPU; False where its node is gone, or it is lost again and again."""
        self.release(seat)  # it may be out of reach only, and would keep the GPU
        seat.restarts += 1
        if seat.restarts > ALLOWED_RESTARTS:
            return False
        seat.actor = self._actor(seat.node_id)  # before it answers: to release the seat meanwhile ends the wait
        try:
            facts = self._ray.get(seat.actor.describe.remote(), timeout=RESTART_TIMEOUT_S)
        except self._ray.exceptions.RayError:
            facts = {}
        if facts.get("uuid") != seat.gpu.uuid:
            self.release(seat)
            return False
        return True

    def release(self, seat: Seat) -> None:
        """End the actor of a seat, whatever it is doing, and all that it started."""
        self._ray.kill(seat.actor)

    def close(self) -> None:
        """Release every seat and leave the cluster."""
        try:
            for seat in self.seats:
                self.release(seat)
        finally:
            self._ray.shutdown()

    def _find(self) -> list[Seat]:
        """A seat for every GPU that can be had, in the order of their uuids; those that cannot be are warned of."""
        started = {}
        for node in self._ray.nodes():
            for _ in range(int(node["Resources"].get("GPU", 0)) if node["Alive"] else 0):
                actor = self._actor(node["NodeID"])
                started[actor.describe.remote()] = node["NodeID"], actor
        answered, silent = self._ray.wait(list(started), num_returns=len(started), timeout=FIND_TIMEOUT_S)
        for answer in silent:
            self._leave_out(*started[answer], f"it did not answer within {FIND_TIMEOUT_S:g} s: others use it")
        seats = [self._seat(answer, *started[answer]) for answer in answered]
        return sorted((seat for seat in seats if seat is not None), key=lambda seat: seat.gpu.uuid)

    def _seat(self, answer: Any, node_id: str, actor: Any) -> Seat | None:
        try:
            facts = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            self._leave_out(node_id, actor, first_line(_cause(error)))
            return None
        if facts.pop("code_sha256") != code_sha256():
            self._leave_out(node_id, actor, "it finds another version of dsmla_bench than the one that was sent")
            return None
        facts["node"] = node_id[:8]
        return Seat(Gpu(*(facts[name] for name in ("index", "name", "uuid", "arch", "node"))), facts, node_id, actor)

    def _leave_out(self, node_id: str, actor: Any, why: str) -> None:
        warnings.warn(f"a GPU of node {node_id[:8]} is left out: {why}", stacklevel=2)
        self._ray.kill(actor)

    def _actor(self, node_id: str) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
        remote = self._ray.remote(num_gpus=1, num_cpus=0, max_restarts=0, scheduling_strategy=there)(Host)
        return remote.remote(*self._recipe)


class ClusterLane:
    """A GPU of a cluster as a lane of a sweep (``fleet.Lane``)."""

    def __init__(self, cluster: Cluster, seat: Seat) -> None:
        self._cluster, self._seat = cluster, seat
        self.gpu = seat.gpu

    def measure(self, case: Case, process: int) -> Measurement:
        """The measurement of ``case`` by the worker of ``process`` on the GPU's node."""
        found: Measurement = self._cluster.ask(self._seat, "measure", case, process)
        return replace(found, facts={**self.gpu.columns, **found.facts})

    def restart(self) -> bool:
        """Start again after a loss, on the same GPU."""
        return self._cluster.restart(self._seat)

    def interrupt(self) -> None:
        """End the actor: who waits for its answer gets a LaneLostError."""
        self._cluster.release(self._seat)

    def close(self) -> None:
        """Give the GPU back."""
        self._cluster.release(self._seat)


def lacking_architectures(wanted: Sequence[str], seats: Sequence[Seat]) -> str | None:
    """Which of the wanted architectures no node has, in one sentence; None when all are there."""
    there = [seat.gpu.arch for seat in seats]
    missing = [arch for arch in wanted if arch not in there]
    if not missing:
        return None
    found = ", ".join(f"{there.count(arch)} of {arch}" for arch in sorted(set(there))) or "none"
    return f"no node of the cluster has a GPU of {', '.join(missing)} (GPUs found: {found})"


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ValueError(
            "--ray needs Ray, which is not installed here; install it with pip install 'dsmla-bench[ray]'"
        ) from error


def _require_listener(address: str) -> None:
    """Raise OSError where nobody listens at ``host:port``: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), LISTENER_TIMEOUT_S).close()


def _cause(error: Exception) -> BaseException:
    """What went wrong; an exception in a task comes inside one whose text is Ray's traceback."""
    return getattr(error, "cause", None) or error
