"""Several GPUs at once: who measures what, never two on one, nothing lost. On fake GPUs, with real worker processes."""

import json
import os
import queue
import sys
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import fake_machine
import pytest
from builders import case, refused, timed
from scripted_sweeps import follow_script, the_run

from dsmla_bench.bench import fleet, in_threads, manifest
from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.bench.spread import comparison_groups, seconds_of, spread
from dsmla_bench.bench.worker import Worker, WorkerConfig
from dsmla_bench.cli import main
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import default_formats
from dsmla_bench.kernels.operations import all_operations
from dsmla_bench.reports.run_facts import run_facts
from dsmla_bench.results import Run
from dsmla_bench.rows import inputs_key
from dsmla_bench.summary import summarise_all

TESTS = Path(__file__).parent
SM90 = Architecture.parse("sm90")
PROVIDERS = ("reference", "triton", "vllm")
GPUS = [Gpu(index, "Fake GPU", f"here-{index}", "sm90") for index in range(8)]
AXES = ("--ops", "write,gather", "--formats", "bf16,fp8", "--providers", "reference,triton", "--tokens", "1,2,4")


def default_cases() -> list:
    formats = tuple(fmt.key for fmt in default_formats())
    return expand(Axes(tuple(operation.name for operation in all_operations()), formats, PROVIDERS), SM90)


def uuid_of(shares: dict) -> dict:
    return {case: uuid for uuid, share in shares.items() for case in share}


# Who measures what


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_case_has_one_gpu_and_all_gpus_are_done_at_about_the_same_time(count):
    cases = default_cases()
    shares = spread(cases, GPUS[:count])
    assert Counter(case for share in shares.values() for case in share) == Counter(dict.fromkeys(cases, 1))
    times = [sum(map(seconds_of, share)) for share in shares.values()]
    assert max(times) <= 1.05 * sum(times) / count


def test_rows_that_are_compared_with_each_other_share_a_gpu():
    cases = default_cases()
    place = uuid_of(spread(cases, GPUS))
    for group in comparison_groups(cases):
        assert len({place[case] for case in group}) == 1
        assert len({(case.operation, case.format, case.tokens) for case in group}) == 1
        assert {case.provider for case in group} == set(PROVIDERS)


def test_a_kernel_is_compiled_on_one_of_two_gpus_seldom_on_both():
    families = defaultdict(set)
    for measured, uuid in uuid_of(spread(default_cases(), GPUS[:2])).items():
        families[measured.operation, measured.format].add(uuid)
    split = [family for family, uuids in families.items() if len(uuids) > 1]
    assert len(split) <= len(all_operations())


def test_a_group_stays_where_it_was_begun():
    cases = default_cases()
    before = spread(cases, GPUS[:2])
    begun = {inputs_key(case): uuid for uuid, share in before.items() for case in share[::7]}
    after = uuid_of(spread(cases, GPUS[:4], begun))
    assert all(after[case] == begun[inputs_key(case)] for case in cases if inputs_key(case) in begun)
    assert uuid_of(spread(cases, GPUS[2:4], begun)).keys() == after.keys(), "theirs are gone: others take over"


def test_what_a_provider_refuses_takes_no_time():
    cases = default_cases()
    free = lambda case: 0.0 if case.format.startswith("fp8") else seconds_of(case)  # noqa: E731
    times = [sum(map(free, share)) for share in spread(cases, GPUS[:2], seconds=free).values()]
    assert max(times) <= 1.05 * sum(times) / 2


# The command


@pytest.fixture
def kernels(tmp_path, monkeypatch, capfd):
    """Runs ``dsmla-bench kernels`` on a machine with fake GPUs; exit code, standard output and error."""

    def run(*arguments, gpus="here:sm90,sm90", **script):
        follow_script(monkeypatch, tmp_path, **script)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("FAKE_GPUS", gpus)
        monkeypatch.setattr(manifest, "find_devices", fake_machine.find_devices)
        command = ["dsmla-bench", "kernels", *AXES, "--processes", "2", "--out", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", [*command, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


def log_of(tmp_path) -> list[tuple]:
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    return [(uuid, int(process), row, float(began), float(ended)) for uuid, process, row, began, ended, _ in lines]


def test_two_devices_measure_at_once_and_never_two_cases_on_one(kernels, tmp_path):
    code, _, err = kernels("--devices", "all", nap=0.02)
    assert code == 0, err
    run, log = the_run(tmp_path), log_of(tmp_path)
    by_gpu = {uuid: sorted(entry[3:] for entry in log if entry[0] == uuid) for uuid in ("here-0", "here-1")}
    for intervals in by_gpu.values():
        assert all(ended <= began for (_, ended), (began, _) in pairwise(intervals))
    (first, last), (other, latest) = ((times[0][0], times[-1][1]) for times in by_gpu.values())
    assert first < latest
    assert other < last, "they do not wait for each other"
    cases = Counter((m.case.row_id, m.process) for m in run.measurements)
    assert len(cases) == 2 * 2 * 3 * 2 * 2 * 2  # operations, formats, tokens, page orders, providers, processes
    assert set(cases.values()) == {1}


def test_every_row_names_its_device_and_has_that_devices_calibration(kernels, tmp_path):
    kernels("--devices", "0,1")
    rows, devices = the_run(tmp_path).rows(), the_run(tmp_path).manifest["devices"]
    assert {tuple(row) for row in rows[["device", "device_uuid", "device_index"]].to_numpy()} == {
        ("Fake GPU", "here-0", 0),
        ("Fake GPU", "here-1", 1),
    }
    assert rows.groupby("device_uuid")["floor_us"].unique().map(list).to_dict() == {"here-0": [0.7], "here-1": [0.8]}
    assert [(device["uuid"], device["calibration"]["copy_gbps"]) for device in devices] == [
        ("here-0", 4000.0),
        ("here-1", 4001.0),
    ]
    assert "device: 2 × Fake GPU, sm90, 1 MB L2" in run_facts(the_run(tmp_path), "")
    shape = ["operation", "format", "tokens", "page_order"]
    assert (rows.groupby(shape)["device_uuid"].nunique() == 1).all()
    assert not rows["suspect"].any()


def test_a_clock_is_held_against_those_of_its_own_gpu():
    clocks = {"here-0": (1980.0, 1975.0, 1980.0), "here-1": (1700.0, 1700.0, 1500.0)}
    rows = summarise_all(
        [
            timed(case(tokens=2**number, format=fmt), 9.0, device_uuid=uuid, sm_mhz=mhz)
            for fmt, (uuid, values) in zip(("bf16", "fp8"), clocks.items(), strict=True)
            for number, mhz in enumerate(values)
        ]
    )
    assert [(row.format, row.suspicion) for row in rows if row.suspect] == [
        ("fp8", "the clock was 1500 MHz, in the run's median row 1700")
    ]


def test_a_row_of_two_gpus_is_suspect():
    (row,) = summarise_all([timed(case(), 9.0, process, device_uuid=f"here-{process}") for process in range(2)])
    assert row.suspicion == "measured with 2 different values of device_uuid"


def test_of_rows_that_are_compared_those_of_another_gpu_than_most_are_suspect():
    places = {"reference": "here-0", "triton": "here-1", "vllm": "here-1"}
    compared = [timed(case(provider=provider), 9.0, device_uuid=uuid) for provider, uuid in places.items()]
    others = [timed(case(tokens=1, provider=provider), 9.0, device_uuid="here-0") for provider in places]
    never_timed = refused(case(provider="flashinfer"), "skipped", "it has no write", device_uuid="here-2")
    rows = summarise_all([*compared, never_timed, *others])
    assert [(row.provider, row.tokens, row.suspicion) for row in rows if row.suspect] == [
        ("reference", 128, "measured on another device than the rows that it is compared with")
    ]


def test_of_two_rows_on_two_gpus_the_one_that_came_later_is_suspect():
    places = {"triton": "here-0", "vllm": "here-1"}
    rows = summarise_all([timed(case(provider=name), 9.0, device_uuid=uuid) for name, uuid in places.items()])
    assert [row.provider for row in rows if row.suspect] == ["vllm"]


def test_a_sweep_of_two_devices_is_resumed_on_the_same_ones_only(kernels, tmp_path):
    kernels("--devices", "all")
    whole = the_run(tmp_path)
    lines = (whole.path / "rows.jsonl").read_text().splitlines(keepends=True)
    (whole.path / "rows.jsonl").write_text("".join(lines[:30]))
    code, _, err = kernels("--devices", "all", "--resume", whole.path)
    assert (code, "holds 30 of 96 measurements" in err) == (0, True)
    run = Run.load(whole.path)
    assert Counter((m.case.row_id, m.process) for m in run.measurements) == Counter(
        (m.case.row_id, m.process) for m in whole.measurements
    )
    places = [rows.set_index("row_id")["device_uuid"].to_dict() for rows in (run.rows(), whole.rows())]
    assert places[0] == places[1]
    code, _, err = kernels("--devices", "0", "--resume", whole.path)
    expected = (
        "was measured with devices sm90 here-0,here-1 and cannot go on with devices sm90 here-0; go on as it began"
    )
    assert (code, expected in err) == (2, True)


def test_a_worker_that_dies_costs_its_row_on_its_device_only(kernels, tmp_path):
    victim = expand(Axes(("write",), ("bf16:raw",), ("triton",), (2,)), SM90)[0].row_id
    code, _, _ = kernels("--devices", "all", faults={victim: "kill"})
    rows = the_run(tmp_path).rows().set_index("row_id")
    assert (code, rows.loc[victim, "status"], (rows["status"] != "ok").sum()) == (1, "runtime_error", 1)
    assert rows.loc[victim, "device_uuid"] in ("here-0", "here-1")


@pytest.mark.parametrize("kind", ["GPU", "MIG"])
def test_devices_may_be_named_by_uuid(kernels, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{kind}-7-2,{kind}-7-0")
    code, _, err = kernels("--devices", "all", gpus=f"{kind}-7:sm90,sm90,sm90")
    assert code == 0, err
    rows = the_run(tmp_path).rows()
    assert {tuple(row) for row in rows[["device_index", "device_uuid"]].to_numpy()} == {
        (0, f"{kind}-7-2"),
        (1, f"{kind}-7-0"),
    }
    assert set(rows["status"]) == {"ok"}


def test_a_dry_run_says_who_would_measure_what(kernels, tmp_path):
    code, out, _ = kernels("--devices", "all", "--dry-run")
    assert code == 0
    assert "device 1 (Fake GPU, sm90): 24 cases, about 0.4 minutes" in out.splitlines()
    document = json.loads(kernels("--devices", "1", "--dry-run", "--json")[1])
    assert [(device["uuid"], device["cases"]) for device in document["devices"]] == [("here-1", 48)]
    assert {case["device_uuid"] for case in document["cases"]} == {"here-1"}
    assert not (tmp_path / "runs").exists()


def test_gpus_of_two_architectures_each_measure_their_own(kernels, tmp_path):
    assert kernels("--devices", "all", gpus="here:sm90,sm100")[0] == 0
    places = the_run(tmp_path).rows().groupby("arch")["device_uuid"].unique().map(list).to_dict()
    assert places == {"sm90": ["here-0"], "sm100": ["here-1"]}


@pytest.mark.parametrize(
    ("arguments", "gpus", "message"),
    [
        (["--devices", "2"], "here:sm90,sm90", "no device 2 here; found: device 0 (Fake GPU, sm90), device 1 ("),
        (["--devices", "one"], "here:sm90", "--devices must be whole numbers with commas between, found 'one'"),
        (["--devices", "1", "--arch", "sm90"], "here:sm90,sm100", "device 1 (Fake GPU, sm100) is none of the swept"),
        (["--devices", "all", "--paired", "x"], "here:sm90", "a side of ab measures on one device"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(kernels, tmp_path, arguments, gpus, message):
    code, _, err = kernels(*arguments, gpus=gpus)
    assert (code, message in err) == (2, True), err
    assert not (tmp_path / "runs").exists()


def test_a_sweep_that_is_stopped_ends_its_workers_and_records_nothing_of_that(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FAKE_GPUS", "here:sm90,sm90")
    cases = expand(Axes(("write",), ("bf16:raw",), ("triton",), (1, 2, 4, 8), page_orders=("ordered",)), SM90)
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"log": str(tmp_path / "log"), "naps": {case.row_id: 60.0 for case in cases[1:]}}))
    config = WorkerConfig("fake_machine:ScriptedBench", libraries={"script": str(file)})
    lanes = [fleet.LocalLane(config, gpu, 2) for gpu in GPUS[:2]]
    run = Run.create(tmp_path / "runs", {})
    shares = {"here-0": cases[:2], "here-1": cases[2:]}
    measurements = fleet.Fleet(run, lanes, shares, 2, seed=0).measurements()  # an order that begins with the quick one
    assert next(measurements).case == cases[0]
    measurements.close()
    assert [(m.case, m.status) for m in run.measurements] == [(cases[0], "ok")]
    assert not any(worker._process for lane in lanes for worker in lane._alive.values())


def test_a_worker_sees_its_own_device_alone_and_not_before_it_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FAKE_GPUS", "here:sm90,sm90,sm90")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    script = tmp_path / "script.json"
    config = WorkerConfig("fake_machine:ScriptedBench", libraries={"script": str(script)}, device=1)
    worker = Worker(config)
    worker.prepare()
    time.sleep(1.0)  # by now it would have failed for want of its script
    script.write_text(json.dumps({"log": str(tmp_path / "log")}))
    measured = worker.measure(default_cases()[0])
    worker.stop()
    assert (measured.status, log_of(tmp_path)[0][0]) == ("ok", "here-1")


# Lanes that are lost


class ScriptedLane:
    """A lane that is lost at the calls named by ``lost`` (counted from 0), and can be restarted so often."""

    def __init__(self, gpu, lost=(), restarts=0, victims=()):
        self.gpu, self.lost, self.restarts, self.victims, self.calls = gpu, lost, restarts, victims, 0

    def measure(self, case, process):
        call, self.calls = self.calls, self.calls + 1
        if call in self.lost or case.row_id in self.victims:
            raise fleet.LaneLostError("it went away")
        return fleet.Measurement(case, process, "ok", samples={"graph": [1.0]}, facts=self.gpu.columns)

    def restart(self):
        self.restarts -= 1
        return self.restarts >= 0

    def interrupt(self):
        pass

    def close(self):
        pass


def flown(tmp_path, lanes, cases, processes=2):
    """A run of these lanes, and the warnings of it."""
    run = Run.create(tmp_path / "runs", {})
    shares = spread(cases, [lane.gpu for lane in lanes])
    with pytest.warns(UserWarning, match="device") as warned:
        list(fleet.Fleet(run, lanes, shares, processes, seed=0).measurements())
    return run, [str(warning.message) for warning in warned]


def counted(run) -> Counter:
    return Counter((m.case, m.process) for m in run.measurements)


def test_others_take_over_what_a_lost_device_lacks(tmp_path):
    cases = default_cases()[:60]
    lanes = [ScriptedLane(GPUS[0], lost=[7]), ScriptedLane(GPUS[1]), ScriptedLane(GPUS[2])]
    run, said = flown(tmp_path, lanes, cases)
    assert counted(run) == Counter({(case, process): 1 for case in cases for process in range(2)})
    assert Counter(m.facts["device_uuid"] for m in run.measurements)["here-0"] == 7
    lacked = 2 * len(spread(cases, GPUS[:3])["here-0"]) - 7
    assert said == [f"device 0 (Fake GPU, sm90) is lost; other devices take over {lacked} measurements (it went away)"]
    assert [(loss["gpu"]["uuid"], loss["unfinished"], loss["restarted"]) for loss in run.manifest["lost"]] == [
        ("here-0", lacked, False)
    ]


def test_a_comparison_that_lies_on_two_devices_after_a_loss_is_marked_with_one_process_too(tmp_path):
    """Each row is of one device then, and none of them looks wrong by itself."""
    cases = default_cases()[:60]
    run, _ = flown(tmp_path, [ScriptedLane(GPUS[0], lost=[7]), ScriptedLane(GPUS[1])], cases, processes=1)
    places = {m.case: m.facts["device_uuid"] for m in run.measurements}
    split = [group for group in comparison_groups(cases) if len({places[case] for case in group}) > 1]
    assert len(split) == 1, "the seventh case is not the last of its group"
    suspects = {row.row_id for row in run.summaries() if row.suspect}
    trusted = [case for case in cases if case.row_id not in suspects]
    assert all(len({places[case] for case in group}) == 1 for group in comparison_groups(trusted))
    assert suspects < {case.row_id for case in split[0]}


def test_a_device_that_can_be_started_again_keeps_its_cases(tmp_path):
    cases = default_cases()[:30]
    run, said = flown(tmp_path, [ScriptedLane(GPUS[0], lost=[3, 9], restarts=2), ScriptedLane(GPUS[1])], cases)
    assert counted(run) == Counter({(case, process): 1 for case in cases for process in range(2)})
    assert {m.case: m.facts["device_uuid"] for m in run.measurements} == uuid_of(spread(cases, GPUS[:2]))
    assert ["is started again" in text for text in said] == [True, True]


def test_a_case_that_takes_two_lanes_with_it_is_not_asked_a_third_time(tmp_path):
    cases = default_cases()[:30]
    victim = cases[10]
    lanes = [ScriptedLane(gpu, restarts=1, victims=[victim.row_id]) for gpu in GPUS[:2]]
    run, said = flown(tmp_path, lanes, cases, processes=1)
    assert counted(run) == Counter({(case, 0): 1 for case in cases})
    (failed,) = (m for m in run.measurements if m.status != "ok")
    assert (failed.case, failed.status, len(said)) == (victim, "runtime_error", 2)
    assert failed.reason == "it was lost with its process 2 times: it went away"


def test_without_any_device_left_the_rest_is_measured_and_the_lack_said_by_name(tmp_path):
    axes = Axes(("write",), ("bf16:raw",), ("triton",), (1, 2, 4))
    cases = [*expand(axes, SM90), *expand(axes, Architecture.parse("sm100"))]
    lanes = [ScriptedLane(Gpu(0, "B200", "there-0", "sm100"), lost=[1]), ScriptedLane(GPUS[0])]
    run = Run.create(tmp_path / "runs", {})
    shares = {gpu.uuid: [case for case in cases if case.arch == gpu.arch] for gpu in (lane.gpu for lane in lanes)}
    measurements = fleet.Fleet(run, lanes, shares, 1, seed=0).measurements()
    lacking = len(shares["there-0"]) - 1
    with (
        pytest.warns(UserWarning, match="is lost"),
        pytest.raises(fleet.NoLaneLeftError, match=f"no sm100 device is left, and {lacking} cases are not measured"),
    ):
        list(measurements)
    assert Counter(m.case.arch for m in run.measurements) == {"sm90": len(shares["here-0"]), "sm100": 1}


def test_a_lane_that_cannot_be_closed_is_an_error_and_nobody_waits_for_it_for_ever(tmp_path):
    class Stuck(ScriptedLane):
        def close(self):
            raise RuntimeError("its node does not answer")

    run, cases = Run.create(tmp_path / "runs", {}), default_cases()[:6]
    measurements = fleet.Fleet(run, [Stuck(GPUS[0])], {GPUS[0].uuid: cases}, 1, seed=0).measurements()
    ended = queue.SimpleQueue()

    def measure():
        try:
            list(measurements)
        except RuntimeError as error:
            ended.put(str(error))

    threading.Thread(target=measure, daemon=True).start()
    assert ended.get(timeout=30) == "its node does not answer"
    assert len(run.measurements) == 6


class Waiting(ScriptedLane):
    """A lane that answers its first question and waits in the next one until it is interrupted."""

    def __init__(self, gpu, interrupting=None, **script):
        super().__init__(gpu, **script)
        self.interrupting, self.waits, self.interrupted = interrupting, threading.Event(), threading.Event()

    def measure(self, case, process):
        if self.calls:
            self.waits.set()
            self.interrupted.wait()
        return super().measure(case, process)

    def interrupt(self):
        if self.interrupting is not None:
            raise self.interrupting
        self.interrupted.set()


def test_a_lane_that_cannot_be_interrupted_keeps_no_other_one_running(tmp_path, monkeypatch):
    monkeypatch.setattr(in_threads, "END_TIMEOUT_S", 0.5)
    lost = ConnectionError("no way to its node")
    lanes = [Waiting(GPUS[0], lost), Waiting(GPUS[1], ConnectionError("nor to this one")), Waiting(GPUS[2])]
    run, cases = Run.create(tmp_path / "runs", {}), default_cases()[:60]
    measurements = fleet.Fleet(run, lanes, spread(cases, GPUS[:3]), 1, seed=0).measurements()
    next(measurements)
    assert all(lane.waits.wait(timeout=30) for lane in lanes)
    with (
        pytest.warns(UserWarning, match="2 of 3 workers did not answer within 0.5 s and are left behind"),
        pytest.raises(ConnectionError, match="no way to its node"),
    ):
        measurements.close()
    assert lanes[2].interrupted.is_set()
    for lane in lanes:
        lane.interrupted.set()  # those left behind go on, and write nothing any more
    assert len(run.measurements) <= 3


def test_what_went_wrong_first_is_raised_and_not_what_went_wrong_in_ending_it(tmp_path, monkeypatch):
    class Broken(ScriptedLane):
        def measure(self, case, process):
            lanes[1].waits.wait(timeout=30)
            raise OSError("no space left")

    monkeypatch.setattr(in_threads, "END_TIMEOUT_S", 0.5)
    lanes = [Broken(GPUS[0]), Waiting(GPUS[1], ConnectionError("no way to its node"))]
    run, cases = Run.create(tmp_path / "runs", {}), default_cases()[:20]
    with pytest.warns(UserWarning, match="1 of 2 workers"), pytest.raises(OSError, match="no space left"):
        list(fleet.Fleet(run, lanes, spread(cases, GPUS[:2]), 1, seed=0).measurements())
    lanes[1].interrupted.set()


def test_after_a_row_that_could_not_be_written_no_lane_writes_behind_what_is_left_of_it(tmp_path, monkeypatch):
    run, cases, calls = Run.create(tmp_path / "runs", {}), default_cases()[:20], []

    def append(measurement):
        calls.append(measurement)
        time.sleep(0.1)  # the other lane has its next row by now
        raise OSError("no space left")

    monkeypatch.setattr(run, "append", append)
    lanes = [ScriptedLane(gpu) for gpu in GPUS[:2]]
    with pytest.raises(OSError, match="no space left"):
        list(fleet.Fleet(run, lanes, spread(cases, GPUS[:2]), 1, seed=0).measurements())
    assert len(calls) == 1


def test_an_error_in_a_lane_ends_the_sweep_and_is_raised(tmp_path):
    class Broken(ScriptedLane):
        def measure(self, case, process):
            raise OSError("no space left")

    lanes = [Broken(GPUS[0]), ScriptedLane(GPUS[1])]
    run, cases = Run.create(tmp_path / "runs", {}), default_cases()[:20]
    with pytest.raises(OSError, match="no space left"):
        list(fleet.Fleet(run, lanes, spread(cases, GPUS[:2]), 1, seed=0).measurements())
