"""A machine with fake GPUs, and a worker on one of them. Needs neither torch nor a GPU, and so starts at once.

``FAKE_GPUS`` names the machine and the architectures of its GPUs: ``alpha:sm90,sm90``. As on a real machine, only those
in ``CUDA_VISIBLE_DEVICES`` are seen, which has their indices or uuids. While there is the file ``FAKE_HANG``, a device
that is asked what it is does not answer.

A worker's script is a JSON file, named as the library of a provider called ``script``:

    log      a file that gets one line per case: uuid, process, row_id, when it began and ended, s, and whose code ran
    nap      seconds that a case takes, and by row_id under ``naps``
    faults   {row_id: fault}: kill (this worker), kill parent (what the worker belongs to), in place of an answer; each
             happens once, unless ``always``
"""

import json
import os
import signal
import time
from pathlib import Path

import dsmla_bench
from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.rows import Measurement


def find_devices():
    name, _, archs = os.environ.get("FAKE_GPUS", "here:").partition(":")
    every = [Gpu(index, "Fake GPU", f"{name}-{index}", arch) for index, arch in enumerate(archs.split(",")) if arch]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return every
    by_name = {name: gpu for gpu in every for name in (str(gpu.index), gpu.uuid)}
    seen = [by_name[name] for name in visible.split(",") if name]
    return [Gpu(index, gpu.name, gpu.uuid, gpu.arch) for index, gpu in enumerate(seen)]


def describe_device(index):
    while Path(os.environ.get("FAKE_HANG", "no such file")).exists():
        time.sleep(0.1)
    gpu = find_devices()[index]
    return {"index": index, "name": gpu.name, "uuid": gpu.uuid, "arch": gpu.arch, "l2_bytes": 1 << 20}


def describe():
    return {"packages": {"torch": "2.11.0", "triton": "3.6.0"}}


class ScriptedBench:
    def __init__(self, config):
        self.config = config

    def begin(self):
        (self.gpu,) = find_devices()
        self.script = json.loads(Path(self.config.libraries["script"]).read_text())

    def measure(self, case):
        began = time.time()
        self._fail(self.script.get("faults", {}).get(case.row_id), case)
        time.sleep(self.script.get("naps", {}).get(case.row_id, self.script.get("nap", 0.0)))
        number = int(self.gpu.uuid.rpartition("-")[2])
        facts = {"floor_us": (7 + number) / 10, "quantum_us": 0.001, "copy_gbps": 4000.0 + number, "sm_mhz": 1980.0}
        facts["seed"] = self.config.seed
        with open(self.script["log"], "a") as log:
            ended, code = time.time(), dsmla_bench.__file__
            log.write(f"{self.gpu.uuid} {self.config.process} {case.row_id} {began} {ended} {code}\n")
        samples = {method: [10.0, 10.1, 9.9] for method in self.config.methods}
        return Measurement(case, self.config.process, "ok", samples=samples, facts=facts)

    def _fail(self, fault, case):
        if fault is None:
            return
        if not self.script.get("always"):
            try:
                Path(f"{self.script['log']}.{case.row_id}").touch(exist_ok=False)
            except FileExistsError:
                return
        os.kill(os.getppid() if fault == "kill parent" else os.getpid(), signal.SIGKILL)
        time.sleep(60)
