"""A device with scripted samples and faults: everything above ``bench.device`` runs on it as it does on a GPU.

Its memory is the CPU's and its kernels are interpreted, so the correctness gate is real. Its clock is a script: a JSON
file, named by the worker configuration as the library of a provider called ``script``:

    times    {provider: µs}: what one launch takes, by every method
    samples  {provider: {method: [µs, …]}}: raw samples in place of that
    faults   {"<provider> <tokens>": fault}: oom, hang, kill, illegal, gone, throttle or shared, while timing that case
    gone     a file that is there once the device is not
    log      a file that gets one line per case timed
"""

import json
import os
import signal
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before anything defines a kernel

import torch

from dsmla_bench.bench.device import Timing
from dsmla_bench.bench.measure import MeasureBench
from dsmla_bench.bench.worker import WorkerConfig
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.interpreter import corrected_conversions

ILLEGAL = "CUDA error: an illegal memory access was encountered"
LOST, NONE_THERE = "CUDA error: unspecified launch failure", "CUDA error: no CUDA-capable device is detected"
HINTS = "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable more.\n"
"""What torch adds to CUDA's words."""


class FakeDevice:
    name = "Fake GPU"
    l2_bytes = 1 << 20
    peak_gbps = 4800.0
    torch_device = torch.device("cpu")

    def __init__(self, arch="sm90"):
        self.arch = Architecture.parse(arch)
        self.samples = {}
        self.facts = {}
        self.fault = None
        self.gone = None

    def calibrate(self, methods):
        return {"floor_us": 0.7, "quantum_us": 0.001, "copy_gbps": 4000.0, "matmul_tflops": 800.0, "sm_mhz": 1980.0}

    def synchronize(self):
        pass

    def time(self, bind, nbytes, l2_state, methods):
        bind(0)()
        if self.fault == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB")
        if self.fault == "illegal":
            raise RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be reported asynchronously")
        if self.fault == "gone":
            self.gone.touch()
            raise RuntimeError(LOST)
        if self.fault == "hang":
            time.sleep(3600)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        throttled = {"throttle_reasons": "thermal (hardware)", "sm_mhz": 1400.0} if self.fault == "throttle" else {}
        samples = {method: self.samples[method] for method in methods}
        shared = {"other_processes": 2 * (self.fault == "shared")}
        return Timing(samples, {"sm_mhz": 1980.0, **self.facts, **throttled, **shared}, [bind(0)])


class FakeBench:
    """A worker's bench on the fake device, as its script says."""

    def __init__(self, config: WorkerConfig):
        self.config = config
        self.script = json.loads(Path(config.libraries["script"]).read_text())
        self.device = FakeDevice()
        self.device.gone = Path(self.script.get("gone", "never"))
        self.bench = MeasureBench(config, self.take_device)

    def take_device(self):
        if self.device.gone.exists():
            raise RuntimeError(NONE_THERE + HINTS)
        return self.device

    def begin(self):
        self.bench.begin()

    def measure(self, case):
        us = self.script.get("times", {}).get(case.provider, 10.0)
        scripted = self.script.get("samples", {}).get(case.provider)
        self.device.samples = scripted or {method: [us, us * 1.01, us * 0.99] for method in self.config.methods}
        self.device.fault = self.script.get("faults", {}).get(f"{case.provider} {case.tokens}")
        if log := self.script.get("log"):
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {self.config.process} {case.row_id}\n")
        with corrected_conversions():
            return self.bench.measure(case)
