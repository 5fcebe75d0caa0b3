"""An accuracy run on a Ray cluster: variants × tasks as shards, spread over its GPUs, one model on each.

A GPU takes the next shard when it is free, one of the variant that it has open where there is one. Every shard is a
cell of the run as soon as it is computed; what a run holds is not computed again, and pairing comes at the end, from
the cells, as in any accuracy run. A shard whose process or node is lost is computed elsewhere. One that is lost twice
ends the run with an error, and leaves the rest of it to be gone on with.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import warnings
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from dsmla_bench.bench.cluster import Cluster, Seat
from dsmla_bench.bench.fleet import ALLOWED_LOSSES, LaneLostError
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.in_threads import Work, answers_of
from dsmla_bench.evals.accuracy import FIDELITY, Session, cell_keys, collect, fidelity_key
from dsmla_bench.evals.accuracy_cells import cells_of, differing
from dsmla_bench.evals.accuracy_environment import environment
from dsmla_bench.evals.accuracy_plan import AccuracyPlan
from dsmla_bench.results import Run

MACHINE, MAKER = "dsmla_bench.bench.manifest", "dsmla_bench.evals.accuracy_shards:ShardMaker"

Shard: TypeAlias = tuple[str, ...]
"""(label of a variant, task), or (FIDELITY,): the names of its cell."""


def open_cluster(plan: AccuracyPlan, address: str) -> Cluster:
    """The cluster with a model of the plan on each of its GPUs. Raises ValueError without Ray, a cluster or a GPU."""
    if plan.backend == "server":
        raise ValueError("servers compute for themselves; --ray is for --backend sim and vllm")
    # A plan of its own for the nodes: this one may know by now where things lie on this machine.
    cluster = Cluster(address, MACHINE, MAKER, (replace(plan),), environment(online=plan.online))
    if not cluster.seats:
        cluster.close()
        raise ValueError(f"--ray {address}: no node of the cluster has a GPU")
    return cluster


def execute(session: Session, run: Run, cluster: Cluster) -> Generator[str]:
    """Have the cluster compute what ``run`` lacks, and write its tables; yields the name of every step when it is done.

    Closed early, or after an error, it writes the tables of what is finished.
    """
    cells = cells_of(run)
    keys = {shard: key for shard, key in _keys(session).items() if cells.load(shard, key) is None}
    work = _Work(cluster, keys)
    try:
        yield from (" ".join(shard) for shard in _keys(session) if shard not in keys)
        for done in work.results():
            if done.found is not None:
                cells.save(done.shard, keys[done.shard], done.found)
            yield " ".join(done.shard)
    finally:
        if work.lost:
            run.manifest["lost"] = work.lost
        collect(session, run)


def _keys(session: Session) -> dict[Shard, dict[str, Any]]:
    """Every shard of a session and the key of its cell, the baseline's first."""
    keys: dict[Shard, dict[str, Any]] = {}
    for variant in session.computed:
        keys |= {(variant.label, task): key for task, key in cell_keys(session, variant).items()}
    if session.plan.windows:
        keys[FIDELITY,] = fidelity_key(session)
    return keys


@dataclass(frozen=True)
class _Done:
    """A shard that is computed; ``found`` is None where the backend has no such thing."""

    shard: Shard
    found: dict[str, Any] | None


@dataclass(frozen=True)
class _Loss:
    """A seat that was lost with the shard that it was at; ``restarted``: it goes on."""

    gpu: Gpu
    shard: Shard
    reason: str
    restarted: bool


class _Work:
    """Shards that are shared out over the seats of a cluster, a thread for each."""

    def __init__(self, cluster: Cluster, keys: Mapping[Shard, dict[str, Any]]) -> None:
        self._cluster, self._keys = cluster, keys
        self._todo = list(keys)
        self._at: dict[str, Shard] = {}
        self._labels: dict[str, str] = {}
        self._losses: Counter[Shard] = Counter()
        self._changed, self._closed = threading.Condition(), False
        self._answers: queue.SimpleQueue[_Done | _Loss | Exception | None] = queue.SimpleQueue()
        self.lost: list[dict[str, Any]] = []

    def results(self) -> Generator[_Done]:
        """Every shard as it is done. Raises ValueError for one that fails, or when no GPU is left."""
        seats = self._cluster.seats
        works = [Work(partial(self._drive, seat), partial(self._cluster.release, seat)) for seat in seats]
        with contextlib.closing(answers_of(works, self._answers, self._close)) as answers:
            for answer in answers:
                if isinstance(answer, _Done):
                    yield answer
                else:
                    self._note(answer)
        if self._todo:
            raise ValueError(f"no GPU of the cluster is left, and {len(self._todo)} shards are not computed")

    def _note(self, loss: _Loss) -> None:
        self.lost.append(asdict(loss))
        shard = " ".join(loss.shard)
        warnings.warn(f"{loss.gpu} was lost; {shard} is computed again ({loss.reason})", stacklevel=2)

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drive(self, seat: Seat) -> None:
        """The thread of a seat."""
        while (shard := self._take(seat.gpu.uuid)) is not None:
            try:
                self._answers.put(self._compute(seat, shard))
            except LaneLostError as error:
                if self._closed or not self._recover(seat, shard, str(error)):
                    break

    def _take(self, uuid: str) -> Shard | None:
        """The next shard for this GPU, waiting for what others may lose; None when all are done.

        It is one of the variant that the GPU has open, or else one of a variant that no other GPU has open.
        """
        with self._changed:
            self._at.pop(uuid, None)
            self._changed.notify_all()
            while not self._todo and self._at and not self._closed:
                self._changed.wait()
            if not self._todo or self._closed:
                return None
            mine, others = self._labels.pop(uuid, None), set(self._labels.values())
            shard = min(self._todo, key=lambda shard: (shard[0] != mine, shard[0] in others))
            self._todo.remove(shard)
            self._at[uuid], self._labels[uuid] = shard, shard[0]
            return shard

    def _compute(self, seat: Seat, shard: Shard) -> _Done:
        question = ("fidelity",) if shard == (FIDELITY,) else ("scores", *shard)
        key, found = self._cluster.ask(seat, *question)
        if different := differing(key, self._keys[shard]):
            raise ValueError(f"{seat.gpu} would compute something else: {different[0]} is not the same there as here")
        return _Done(shard, found)

    def _recover(self, seat: Seat, shard: Shard, reason: str) -> bool:
        """Give a lost shard to whoever is free; whether this seat goes on."""
        self._losses[shard] += 1
        if self._losses[shard] >= ALLOWED_LOSSES:
            raise ValueError(f"{' '.join(shard)}: its process was lost {ALLOWED_LOSSES} times ({reason})")
        with self._changed:
            self._todo.insert(0, shard)
            self._at.pop(seat.gpu.uuid)
            self._labels.pop(seat.gpu.uuid)
            self._changed.notify_all()
        restarted = self._cluster.restart(seat)
        self._answers.put(_Loss(seat.gpu, shard, reason, restarted))
        return restarted
