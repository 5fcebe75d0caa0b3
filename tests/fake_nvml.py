"""NVML with a script: what it knows of one device or slice, in place of the driver's library.

    nvml(uuid="GPU-0", processes=[17, 18])      answers for that uuid
    nvml(missing=True)                          a machine without the library
    nvml(lost=True)                             every question is answered with NVML's "GPU is lost"

A question that the script does not answer is one that the device does not support.
"""

from types import SimpleNamespace

import pynvml

ANSWERS = {
    "nvmlDeviceGetComputeRunningProcesses": "processes",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "throttled",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetEccMode": "ecc",
    "nvmlDeviceGetPowerManagementLimit": "power",
    "nvmlDeviceGetMemoryBusWidth": "bus_bits",
    "nvmlDeviceGetMaxClockInfo": "mhz",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetApplicationsClock": "application_mhz",
}


def install(monkeypatch, uuid="GPU-0", *, missing=False, lost=False, **known):
    """Put the script in the library's place for one test."""

    def init():
        if missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def handle(asked):
        if asked != uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def answer(name):
        def ask(*_):
            if lost:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            if name not in known:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return known[name]

        return ask

    if "processes" in known:
        known["processes"] = [SimpleNamespace(pid=pid) for pid in known["processes"]]
    monkeypatch.setattr(pynvml, "nvmlInit", init)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    for function, name in ANSWERS.items():
        monkeypatch.setattr(pynvml, function, answer(name))
