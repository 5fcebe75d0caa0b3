"""``dsmla-bench kernels`` on scripted fake devices (``fake_machine.ScriptedBench``), and the run that it leaves."""

import json

from dsmla_bench.bench.plan import SweepPlan
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.results import Run


def follow_script(monkeypatch, tmp_path, **script):
    """Every sweep of this process measures by the script, and its workers write to ``log`` in the folder."""
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"log": str(tmp_path / "log"), **script}))
    config = WorkerConfig("fake_machine:ScriptedBench", libraries={"script": str(file)}, machine="fake_machine")
    monkeypatch.setattr(SweepPlan, "_worker_config", config)


def the_run(tmp_path) -> Run:
    """The only run in ``runs`` of the folder."""
    (path,) = (tmp_path / "runs").iterdir()
    return Run.load(path)
