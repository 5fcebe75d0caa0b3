"""A real Ray cluster on this machine: three nodes with a fake GPU each, of two architectures, and real workers."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from scripted_sweeps import follow_script, the_run

from dsmla_bench.bench import cluster as clusters
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.cli import main
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.results import Run

pytest_plugins = ("ray_cluster",)
pytestmark = pytest.mark.xdist_group("ray")

AXES = ("--ops", "write", "--formats", "bf16,fp8", "--providers", "reference,triton", "--tokens", "1,2,4")


@pytest.fixture
def kernels(ray_cluster, tmp_path, monkeypatch, capfd):
    """Runs ``dsmla-bench kernels --ray`` on the cluster; exit code, standard output and error."""

    def run(*arguments, **script):
        follow_script(monkeypatch, tmp_path, **script)
        monkeypatch.chdir(tmp_path)  # Ray's workers look for modules where the driver was started
        command = [str(tmp_path / "dsmla-bench"), "kernels", *AXES, "--processes", "2", "--out", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", [*command, "--ray", ray_cluster.address, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


def counted(run) -> Counter:
    return Counter((m.case.row_id, m.process) for m in run.measurements)


def once_each(*archs) -> Counter:
    axes = Axes(("write",), ("bf16:raw", "fp8:per_tensor"), ("reference", "triton"), (1, 2, 4))
    cases = [case for arch in archs for case in expand(axes, Architecture.parse(arch))]
    return Counter({(case.row_id, process): 1 for case in cases for process in range(2)})


def test_cases_go_to_nodes_of_their_architecture_and_run_this_very_package(kernels, tmp_path):
    code, _, err = kernels("--arch", "sm90,sm100")
    assert code == 0, err
    run = the_run(tmp_path)
    assert counted(run) == once_each("sm90", "sm100")
    places = run.rows().groupby("arch")["device_uuid"].unique().map(sorted).to_dict()
    assert places == {"sm90": ["alpha-0", "beta-0"], "sm100": ["gamma-0"]}
    shape = ["arch", "format", "tokens", "page_order"]
    assert (run.rows().groupby(shape)["device_uuid"].nunique() == 1).all()
    assert {device["uuid"] for device in run.manifest["devices"]} == {"alpha-0", "beta-0", "gamma-0"}
    assert len({device["node"] for device in run.manifest["devices"]}) == 3
    assert run.manifest["packages"] == {"torch": "2.11.0", "triton": "3.6.0"}, "the nodes', which measured"
    code = {line.split()[5] for line in (tmp_path / "log").read_text().splitlines()}
    assert all("py_modules" in path for path in code), f"not what was sent but {code}"


def test_a_node_may_name_its_gpus_by_uuid_and_have_slices_of_them(kernels, add_node, tmp_path):
    """Ray passes on what CUDA_VISIBLE_DEVICES says, so that such a GPU has no index."""
    for name in ("GPU-5c0e", "MIG-77a1"):
        add_node(name, "sm120", CUDA_VISIBLE_DEVICES=f"{name}-0")
    code, out, err = kernels("--arch", "sm120", "--dry-run")
    assert (code, "device GPU-5c0e-0 of node " in out, "device MIG-77a1-0 of node " in out) == (0, True, True), err
    code, _, err = kernels("--arch", "sm120")
    assert code == 0, err
    rows = the_run(tmp_path).rows()
    assert (counted(the_run(tmp_path)), set(rows["device_uuid"])) == (once_each("sm120"), {"GPU-5c0e-0", "MIG-77a1-0"})
    assert rows["device_index"].isna().all()


def test_a_killed_worker_process_costs_nothing_and_is_said(kernels, tmp_path):
    axes = Axes(("write",), ("fp8:per_tensor",), ("triton",), (2,))
    victims = [expand(axes, Architecture.parse(arch))[0].row_id for arch in ("sm90", "sm100")]
    code, _, err = kernels("--arch", "sm90,sm100", faults=dict.fromkeys(victims, "kill parent"))
    run = the_run(tmp_path)
    assert (code, counted(run) == once_each("sm90", "sm100")) == (0, True), err
    assert set(run.rows()["status"]) == {"ok"}
    assert not run.rows()["suspect"].any(), "every row is of one device still"
    assert err.count("is started again and goes on with") == 2
    assert [loss["restarted"] for loss in run.manifest["lost"]] == [True, True]


def test_the_unfinished_cases_of_a_node_that_dies_run_elsewhere(kernels, ray_cluster, add_node, tmp_path):
    node = add_node("delta", "sm90")

    def remove_once_it_measures():
        while "delta-0" not in (tmp_path / "log").read_text() if (tmp_path / "log").exists() else True:
            time.sleep(0.01)
        ray_cluster.remove_node(node, allow_graceful=False)

    remover = threading.Thread(target=remove_once_it_measures)
    remover.start()
    code, _, err = kernels("--arch", "sm90", nap=0.1)
    remover.join()
    run = the_run(tmp_path)
    assert (code, counted(run) == once_each("sm90")) == (0, True), err
    (loss,) = run.manifest["lost"]
    assert (loss["gpu"]["uuid"], loss["restarted"]) == ("delta-0", False)
    assert f"is lost; other devices take over {loss['unfinished']} measurements" in err


def test_a_process_that_is_being_started_again_is_given_up_at_once_when_the_sweep_is_interrupted(
    ray_cluster, add_node, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    add_node("delta", "sm120", FAKE_HANG=str(tmp_path / "hang"))
    opened = clusters.Cluster(ray_cluster.address, "fake_machine", "dsmla_bench.bench.workers:Workers", ())
    (seat,) = (seat for seat in opened.seats if seat.gpu.arch == "sm120")
    lane, answers = clusters.ClusterLane(opened, seat), queue.SimpleQueue()
    (tmp_path / "hang").touch()
    threading.Thread(target=lambda: answers.put(lane.restart()), daemon=True).start()
    time.sleep(2)  # its new process is there by now, and says nothing
    for _ in range(20):  # as whoever waits for a lane's thread does
        lane.interrupt()
        time.sleep(0.05)
    restarted = answers.get(timeout=clusters.RESTART_TIMEOUT_S / 4)
    opened.close()
    assert not restarted


def test_a_sweep_that_was_cut_short_is_gone_on_with(kernels, tmp_path):
    kernels("--arch", "sm100")
    whole = the_run(tmp_path)
    lines = (whole.path / "rows.jsonl").read_text().splitlines(keepends=True)
    (whole.path / "rows.jsonl").write_text("".join(lines[:9]))
    log = (tmp_path / "log").read_text().splitlines()
    code, _, err = kernels("--arch", "sm100", "--resume", whole.path)
    assert (code, "holds 9 of 48 measurements" in err) == (0, True)
    assert counted(Run.load(whole.path)) == once_each("sm100")
    assert len((tmp_path / "log").read_text().splitlines()) == len(log) + len(lines) - 9


def test_a_sweep_that_is_gone_on_with_on_another_node_lists_the_gpus_of_both(kernels, ray_cluster, add_node, tmp_path):
    first = add_node("delta", "sm120")
    kernels("--arch", "sm120")
    whole = the_run(tmp_path)
    lines = (whole.path / "rows.jsonl").read_text().splitlines(keepends=True)
    (whole.path / "rows.jsonl").write_text("".join(lines[:9]))
    ray_cluster.remove_node(first, allow_graceful=False)
    add_node("epsilon", "sm120")
    code, _, err = kernels("--arch", "sm120", "--resume", whole.path)
    assert code == 0, err
    run = the_run(tmp_path)
    assert counted(run) == once_each("sm120")
    assert [device["uuid"] for device in run.manifest["devices"]] == ["delta-0", "epsilon-0"]
    assert all(device["calibration"]["floor_us"] > 0 for device in run.manifest["devices"])


def test_an_architecture_that_no_node_has_is_refused_by_name_before_anything_starts(kernels, tmp_path):
    code, _, err = kernels("--arch", "sm90,sm120")
    assert code == 3
    assert "no node of the cluster has a GPU of sm120 (GPUs found: 1 of sm100, 2 of sm90)" in err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_asks_the_nodes(kernels):
    code, out, _ = kernels("--dry-run", "--json")
    document = json.loads(out)
    assert (code, sorted(device["uuid"] for device in document["devices"])) == (0, ["alpha-0", "beta-0", "gamma-0"])
    assert document["not_timed"] == [], "without --arch: all that the cluster has"


def test_without_ray_the_option_says_what_to_install(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(sys, "argv", ["dsmla-bench", "kernels", "--ray", "auto"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capfd.readouterr().err) == (
        2,
        "dsmla-bench: --ray needs Ray, which is not installed here; install it with pip install 'dsmla-bench[ray]'\n",
    )


def test_an_address_where_no_cluster_answers_is_one_sentence(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["dsmla-bench", "kernels", "--ray", "127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        main()
    (sentence,) = capfd.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert sentence.startswith("dsmla-bench: --ray 127.0.0.1:1: no Ray cluster can be used there ([Errno 111]")


@pytest.mark.parametrize(
    ("imported", "not_needed"), [("cli, dsmla_bench.bench.cluster_plan", "ray"), ("bench.cluster_host", "torch")]
)
def test_what_is_not_needed_is_not_imported(imported, not_needed):
    source = f"import sys, dsmla_bench.{imported}; sys.exit({not_needed!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False, env=dict(os.environ)).returncode == 0


def test_another_option_of_devices_is_a_mistake(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["dsmla-bench", "kernels", "--ray", "auto", "--devices", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--ray measures on all GPUs of a cluster" in capfd.readouterr().err
    assert clusters.lacking_architectures(["sm90"], []) == "no node of the cluster has a GPU of sm90 (GPUs found: none)"
