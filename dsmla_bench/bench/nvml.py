"""What NVML says of a device: power, ECC, MIG, clocks, why it is throttled, and who else is on it.

NVML is asked by the device's uuid, so that CUDA_VISIBLE_DEVICES cannot mix devices up. A slice of a GPU (MIG) has a
uuid of its own, and CUDA gives both without the prefix that NVML wants. Where NVML is missing (no driver, a container
without it) ``open_nvml`` returns None and the columns that come from it are null. A value that a device does not have
is null too, and a device that is lost has none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pynvml  # type: ignore[import-untyped]

THROTTLE_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "thermal (software)",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
}


class Nvml:
    """One device, or a slice of one, by NVML's eyes."""

    def __init__(self, handle: Any, *, is_slice: bool = False) -> None:
        self._handle, self._is_slice = handle, is_slice

    def throttle_reasons(self) -> list[str]:
        """Why the device runs slower than it could at this moment; empty when it does not, or does not tell."""
        bits = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        return [text for name, text in THROTTLE_REASONS.items() if bits & getattr(pynvml, name)]

    def other_processes(self) -> int | None:
        """How many processes compute on the device beside the one that asks, which must be on it; None if untold.

        Their numbers are of no use: in a container, NVML may tell those outside of it.
        """
        found = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses)
        return None if found is None else max(0, len({process.pid for process in found}) - 1)

    def describe(self) -> dict[str, Any]:
        """The part of a manifest's device that NVML knows; clocks in MHz, power in W."""
        ask = self._ask
        ecc, mig = ask(pynvml.nvmlDeviceGetEccMode), ask(pynvml.nvmlDeviceGetMigMode)
        power = ask(pynvml.nvmlDeviceGetPowerManagementLimit)
        bus_bits = ask(pynvml.nvmlDeviceGetMemoryBusWidth)
        memory_mhz = ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM)
        return {
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": True if self._is_slice else None if mig is None else bool(mig[0]),
            "power_limit_w": None if power is None else power / 1000,
            "persistence": ask(pynvml.nvmlDeviceGetPersistenceMode),
            "sm_mhz_max": ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
            "sm_mhz_application": ask(pynvml.nvmlDeviceGetApplicationsClock, pynvml.NVML_CLOCK_SM),
            "memory_mhz_max": memory_mhz,
            "memory_bus_bits": bus_bits,
            "peak_gbps": None if None in (bus_bits, memory_mhz) else 2 * memory_mhz * bus_bits / 8 / 1e3,
            "throttle_reasons": self.throttle_reasons(),
        }

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where the device has none to this question."""
        with contextlib.suppress(pynvml.NVMLError):
            return question(self._handle, *arguments)
        return None


def open_nvml(uuid: str) -> Nvml | None:
    """NVML's view of the device or slice with this uuid (with or without its prefix); None where NVML has none."""
    prefixes = [""] if uuid.startswith(("GPU-", "MIG-")) else ["GPU-", "MIG-"]
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for prefix in prefixes:
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
                return Nvml(handle, is_slice=(prefix + uuid).startswith("MIG-"))
    return None


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None where there is no NVML."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
