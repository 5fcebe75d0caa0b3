"""What a node of a cluster can do wrong, on a scripted Ray: silence, another version, another GPU, errors.

``test_cluster.py`` has real nodes and kills them. Neither Ray nor a GPU is needed here.
"""

import sys
import threading
from types import SimpleNamespace

import fake_machine
import pytest

from dsmla_bench.bench import cluster as clusters
from dsmla_bench.bench.cases import Axes
from dsmla_bench.bench.cluster import Cluster, ClusterLane
from dsmla_bench.bench.cluster_host import Host, code_sha256
from dsmla_bench.bench.cluster_plan import ClusterPlan
from dsmla_bench.bench.fleet import Fleet, LaneLostError
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.plan import SweepPlan
from dsmla_bench.cli.cluster import on_cluster
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.results import Run
from dsmla_bench.rows import Measurement


class RayError(Exception):
    """Raised by Ray for whatever happens in an actor."""


class RayTaskError(RayError):
    """An exception that an actor's method raised."""

    def __init__(self, cause):
        super().__init__("ray::Host.call() (pid=17, ip=10.0.0.1)\n  File ...")
        self.cause = cause


class Actor:
    """One ``Host`` on a node: what it says of its GPU, or the exception in its place."""

    def __init__(self, node, answer):
        self.node, self.killed = node, False
        self.describe = SimpleNamespace(remote=lambda: lambda: answer)
        self.call = SimpleNamespace(remote=lambda method, *arguments: lambda: arguments[0])


class ScriptedRay:
    """Ray with one GPU for each node of ``nodes``: its id → what its actors answer in turn, None for silence."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, nodes):
        self._answers = {node: iter(answers) for node, answers in nodes.items()}
        self.actors, self.is_open = [], False

    def init(self, **_):
        self.is_open = True

    def shutdown(self):
        self.is_open = False

    def nodes(self):
        dead = {"NodeID": "dead", "Alive": False, "Resources": {"GPU": 8.0}}
        head = {"NodeID": "head", "Alive": True, "Resources": {"CPU": 4.0}}
        return [dead, head, *({"NodeID": node, "Alive": True, "Resources": {"GPU": 1.0}} for node in self._answers)]

    def remote(self, *, num_gpus, scheduling_strategy, **_):
        assert num_gpus == 1, "an actor holds its GPU alone"
        return lambda _: SimpleNamespace(remote=lambda *recipe: self._start(scheduling_strategy))

    def _start(self, node):
        self.actors.append(Actor(node, next(self._answers[node])))
        return self.actors[-1]

    def wait(self, questions, num_returns, timeout):
        silent = [question for question in questions if question() is None]
        return [question for question in questions if question not in silent], silent

    def get(self, question, timeout=None):
        answer = question()
        if isinstance(answer, Exception):
            raise answer
        return dict(answer) if isinstance(answer, dict) else answer

    def kill(self, actor):
        actor.killed = True


def gpu(uuid, **changes):
    """What an actor on a node says of its GPU."""
    facts = {"index": 0, "name": "Fake GPU", "uuid": uuid, "arch": "sm90", "packages": {"torch": "2.11.0"}}
    return {**facts, "code_sha256": code_sha256(), **changes}


@pytest.fixture
def opened(monkeypatch):
    """Opens a cluster of nodes that answer so; the cluster and the scripted Ray."""

    def run(**nodes):
        ray = ScriptedRay(nodes)
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
        return Cluster("auto", "fake_machine", "module:name", ()), ray

    return run


def test_every_gpu_has_a_seat_in_the_order_of_their_uuids_and_closing_gives_all_back(opened):
    cluster, ray = opened(beta=[gpu("GPU-2")], alpha=[gpu("GPU-1", index=None)])
    assert [(seat.gpu.uuid, seat.gpu.index, seat.gpu.node) for seat in cluster.seats] == [
        ("GPU-1", None, "alpha"),
        ("GPU-2", 0, "beta"),
    ]
    cluster.close()
    assert all(actor.killed for actor in ray.actors)
    assert not ray.is_open


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "it did not answer within 120 s: others use it"),
        (gpu("GPU-2", code_sha256="0"), "it finds another version of dsmla_bench than the one that was sent"),
        (RayTaskError(RuntimeError("no driver\nat line 3")), "no driver"),
        (RayError("The node died.\nIts address was"), "The node died"),
    ],
)
def test_a_gpu_that_cannot_be_had_is_left_out_in_words_and_given_back(opened, answer, why):
    with pytest.warns(UserWarning, match=f"^a GPU of node beta is left out: {why}$"):
        cluster, ray = opened(alpha=[gpu("GPU-1")], beta=[answer])
    assert [seat.gpu.uuid for seat in cluster.seats] == ["GPU-1"]
    assert {actor.node: actor.killed for actor in ray.actors} == {"alpha": False, "beta": True}


def test_what_an_actor_raises_is_told_apart_from_its_loss(opened):
    cluster, _ = opened(alpha=[gpu("GPU-1")])
    (seat,) = cluster.seats
    lane = ClusterLane(cluster, seat)
    assert cluster.ask(seat, "measure", "an answer") == "an answer"
    with pytest.raises(ValueError, match=r"^device 0 of node alpha \(Fake GPU, sm90\): no such library$"):
        lane.measure(RayTaskError(ValueError("no such library")), 0)
    with pytest.raises(RayTaskError):
        lane.measure(RayTaskError(KeyError("a bug")), 0)
    with pytest.raises(LaneLostError, match=r"^The actor died$"):
        lane.measure(RayError("The actor died.\nIts log is"), 0)


@pytest.mark.parametrize(
    ("again", "goes_on"),
    [(gpu("GPU-1"), True), (gpu("GPU-9"), False), (RayError("the node is gone"), False)],
    ids=["the same GPU", "another GPU", "no answer"],
)
def test_a_lost_actor_is_started_again_on_its_own_gpu_or_not_at_all(opened, again, goes_on):
    cluster, ray = opened(alpha=[gpu("GPU-1"), again])
    (seat,) = cluster.seats
    assert ClusterLane(cluster, seat).restart() is goes_on
    lost, second = ray.actors
    assert (lost.killed, second.killed, seat.actor) == (True, not goes_on, second)


def test_an_actor_that_is_lost_again_and_again_is_given_up(opened):
    cluster, ray = opened(alpha=[gpu("GPU-1")] * 10)
    (seat,) = cluster.seats
    allowed = clusters.ALLOWED_RESTARTS
    assert [cluster.restart(seat) for _ in range(allowed + 2)] == [True] * allowed + [False] * 2
    assert len(ray.actors) == 1 + allowed
    assert all(actor.killed for actor in ray.actors)


# A sweep


def plan_of(*archs):
    axes = Axes(("write",), ("bf16:raw",), ("triton",), tokens=(1, 2, 4), page_orders=("ordered",))
    return SweepPlan(axes, tuple(map(Architecture.parse, archs)))


def test_a_sweep_everywhere_is_of_the_architectures_that_nodes_have_and_names_what_differs_in_their_software(opened):
    software = ("2.11.0", "2.12.0", "2.13.0")
    alpha, beta, gamma = (gpu(f"GPU-{number}", packages={"torch": torch}) for number, torch in enumerate(software))
    opened(alpha=[alpha] * 3, beta=[beta] * 3, gamma=[{**gamma, "arch": "sm100"}] * 3)
    everywhere = ClusterPlan.of(plan_of("sm120"), "auto", everywhere=True)
    assert [arch.name for arch in everywhere.architectures] == ["sm90", "sm100"]
    as_asked = ClusterPlan.of(plan_of("sm90"), "auto", everywhere=False)
    assert [gpu.uuid for gpu in as_asked.gpus(Architecture.parse("sm90"))] == ["GPU-0", "GPU-1"]
    with pytest.warns(UserWarning, match=r"^the nodes have different versions of torch: 2\.11\.0, 2\.12\.0$"):
        assert as_asked.describe()["packages"] == {"torch": "2.11.0"}


class Interrupted:
    """A lane that answers its first question and is gone, as an actor is, when it is interrupted in the second."""

    gpu = Gpu(0, "Fake GPU", "GPU-1", "sm90", "alpha")

    def __init__(self):
        self.asked, self.told, self.restarted = 0, threading.Event(), False

    def measure(self, case, process):
        self.asked += 1
        if self.asked == 1:
            return Measurement(case, process, "ok", samples={"graph": [1.0]})
        self.told.wait(timeout=20)
        raise LaneLostError("The actor died")

    def restart(self):
        self.restarted = True

    def interrupt(self):
        self.told.set()

    def close(self):
        pass


def test_a_lane_that_is_lost_because_the_sweep_is_over_is_not_started_again_and_not_listed(tmp_path):
    run, lane = Run.create(tmp_path, {}), Interrupted()
    (cases,) = plan_of("sm90").cases().values()
    measurements = Fleet(run, [lane], {"GPU-1": cases}, 1, seed=0).measurements()
    next(measurements)
    measurements.close()
    assert (lane.restarted, len(run.measurements), "lost" in run.manifest) == (False, 1, False)


def test_what_ray_prints_while_connected_is_no_part_of_the_answer(opened, monkeypatch, capsys):
    """Ray tells on standard output of nodes that died, from a thread of its own."""
    cluster, _ = opened(alpha=[gpu("GPU-1")])
    monkeypatch.setattr(ClusterPlan, "of", lambda plan, address, everywhere: print("(raylet) one") or planned)
    planned = SimpleNamespace(cluster=cluster, architectures=(Architecture.parse("sm90"),))
    with on_cluster(plan_of("sm90"), "auto", everywhere=False):
        print("(raylet) another")
    print("the answer")
    assert capsys.readouterr() == ("the answer\n", "(raylet) one\n(raylet) another\n")


# On the node


@pytest.mark.parametrize(("given", "index"), [("3", 3), ("GPU-5c0e", None)])
def test_an_actor_says_which_gpu_of_its_node_it_was_given_and_what_code_it_runs(monkeypatch, given, index):
    monkeypatch.setenv("FAKE_GPUS", "alpha:sm90")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": [given]})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    found = Host("fake_machine", "module:name", ()).describe()
    assert (found["index"], found["uuid"], found["code_sha256"]) == (index, "alpha-0", code_sha256())
    assert found["packages"] == fake_machine.describe()["packages"]


class Counter:
    """What a host holds: made once, of its arguments."""

    made = 0

    def __init__(self, start):
        type(self).made += 1
        self._value = start

    def add(self, number):
        self._value += number
        return self._value


def test_an_actor_makes_its_object_when_it_is_first_called_and_keeps_it():
    Counter.made = 0
    host = Host("fake_machine", f"{__name__}:Counter", (40,))
    assert Counter.made == 0
    assert [host.call("add", 1), host.call("add", 1)] == [41, 42]
    assert Counter.made == 1
