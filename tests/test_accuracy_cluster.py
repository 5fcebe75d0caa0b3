"""``accuracy --ray``: shards on the fake GPUs of a real Ray cluster, each with a model of its own, on the CPU."""

import shutil
import sys
from collections import Counter

import pytest
from accuracy_runs import TASK_NAMES, computed, plan_of
from tiny_checkpoint import TASKS

from dsmla_bench.bench.fleet import LaneLostError
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.cli import main
from dsmla_bench.evals import accuracy, accuracy_cluster, accuracy_shards
from dsmla_bench.results import Run

pytest_plugins = ("accuracy_fixtures", "ray_cluster")
pytestmark = pytest.mark.xdist_group("ray")

FORMATS = ("bf16", "fp8_ds_mla", "nvfp4_ds_mla")
TABLES = ("scores", "documents", "judged", "fidelity", "latents")


@pytest.fixture(scope="module")
def alone(checkpoint, tmp_path_factory):
    """The run that one process computes."""
    return computed(plan_of(checkpoint, formats=FORMATS), tmp_path_factory.mktemp("alone"))


def assert_same_tables(run, other):
    for name in TABLES:
        assert run.table(name).astype(str).equals(other.table(name).astype(str)), name


def test_a_cluster_computes_what_one_process_does(ray_cluster, checkpoint, alone, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(accuracy_cluster, "MACHINE", "fake_machine")
    monkeypatch.chdir(tmp_path)
    asked = ["--formats", ",".join(FORMATS), "--ablate", "none", "--windows", "2", "--window-tokens", "64"]
    where = ["--device", "cpu", "--out", str(tmp_path / "runs"), "--ray", ray_cluster.address]
    command = [str(tmp_path / "dsmla-bench"), "accuracy", "--model", str(checkpoint), "--tasks", str(TASKS)]
    monkeypatch.setattr(sys, "argv", [*command, *asked, *where])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, 1), capfd.readouterr().err
    (path,) = (tmp_path / "runs").iterdir()
    run = Run.load(path)
    assert_same_tables(run, alone)
    assert {device["uuid"] for device in run.manifest["devices"]} == {"alpha-0", "beta-0", "gamma-0"}


# Without a cluster: who takes what, and what becomes of it when a process is lost


class Seat:
    def __init__(self, number):
        self.gpu = Gpu(number, "Fake GPU", f"here-{number}", "sm90")


class FakeCluster:
    """Seats whose shards are computed in this process, one after another; ``lost``: shards that a seat is lost at."""

    def __init__(self, plan, seats=1, lost=(), restarts=9):
        self.seats = [Seat(number) for number in range(seats)]
        self.lost, self.restarts = Counter(lost), restarts
        self.maker, self.asked = accuracy_shards.ShardMaker(plan), []

    def ask(self, seat, method, *shard):
        self.asked.append((seat.gpu.uuid, shard or (method,)))
        if self.lost[shard] > 0:
            self.lost[shard] -= 1
            raise LaneLostError("its node has died")
        return getattr(self.maker, method)(*shard)

    def restart(self, seat):
        self.restarts -= 1
        return self.restarts >= 0

    def release(self, seat):
        pass


def spread(plan, cluster, folder, resume=None):
    """A run that the cluster computes, and the names of its steps."""
    session = accuracy.prepare(plan)
    run = plan.resume_run(resume) if resume else plan.create_run(folder)
    names = list(accuracy_cluster.execute(session, run, cluster))
    run.finish()
    return Run.load(run.path), names


@pytest.fixture
def plan(checkpoint):
    return plan_of(checkpoint, formats=("bf16", "fp8_ds_mla"), repeat=False, windows=0)


def test_a_gpu_stays_with_the_format_that_it_has_open(plan, tmp_path):
    cluster = FakeCluster(plan)
    _, names = spread(plan, cluster, tmp_path)
    assert [shard for _, shard in cluster.asked] == [(name, task) for name in plan.formats for task in TASK_NAMES]
    assert names == [f"{name} {task}" for name in plan.formats for task in TASK_NAMES]


def test_a_shard_whose_process_is_lost_is_computed_again(plan, tmp_path):
    cluster = FakeCluster(plan, lost=[("bf16", "tiny_text")])
    with pytest.warns(UserWarning, match="was lost; bf16 tiny_text is computed again"):
        run, names = spread(plan, cluster, tmp_path)
    assert Counter(names) == Counter(f"{name} {task}" for name in plan.formats for task in TASK_NAMES)
    assert [(loss["shard"], loss["restarted"]) for loss in run.manifest["lost"]] == [(["bf16", "tiny_text"], True)]


def test_without_a_gpu_left_what_is_computed_has_its_tables_and_is_not_computed_again(plan, tmp_path):
    cluster = FakeCluster(plan, lost=[("fp8_ds_mla", "tiny_text")], restarts=0)
    session = accuracy.prepare(plan)
    run = plan.create_run(tmp_path)
    with (
        pytest.warns(UserWarning, match="was lost"),
        pytest.raises(ValueError, match="no GPU of the cluster is left, and 1 shards are not computed"),
    ):
        list(accuracy_cluster.execute(session, run, cluster))
    run.finish()
    judged = run.table("judged").query("verdict != 'not comparable'")
    assert set(judged["task"]) == {"tiny_choice", "tiny_generate"}
    again = FakeCluster(plan)
    whole, _ = spread(plan, again, tmp_path, resume=run.path)
    assert [shard for _, shard in again.asked] == [("fp8_ds_mla", "tiny_text")]
    assert set(whole.table("judged")["task"]) == set(TASK_NAMES)


def test_a_shard_that_is_lost_twice_ends_the_run(plan, tmp_path):
    cluster = FakeCluster(plan, lost=[("bf16", "tiny_text")] * 2)
    session = accuracy.prepare(plan)
    with (
        pytest.warns(UserWarning, match="was lost"),
        pytest.raises(ValueError, match="bf16 tiny_text: its process was lost 2 times"),
    ):
        list(accuracy_cluster.execute(session, plan.create_run(tmp_path), cluster))


def test_a_node_that_would_compute_something_else_is_refused(plan, checkpoint, tmp_path):
    other = shutil.copytree(checkpoint, tmp_path / "other")
    (other / "tokenizer_config.json").write_text((other / "tokenizer_config.json").read_text() + "\n")
    cluster = FakeCluster(plan_of(other, formats=plan.formats, repeat=False, windows=0))
    session = accuracy.prepare(plan)
    with pytest.raises(ValueError, match="would compute something else: tokenizer_sha256 is not the same there"):
        list(accuracy_cluster.execute(session, plan.create_run(tmp_path), cluster))


def test_servers_compute_for_themselves(checkpoint):
    plan = plan_of(checkpoint, backend="server", servers={"bf16": "http://a:80"})
    with pytest.raises(ValueError, match="servers compute for themselves"):
        accuracy_cluster.open_cluster(plan, "auto")
