"""What a device must be able to do for the harness: the boundary below which timing happens.

``CudaDevice`` is the real one. Tests put a fake one in its place, with scripted samples and faults, and drive
everything above this boundary: the gate, the worker, the sweep, the flags, the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dsmla_bench.kernels.arch import Architecture

Call = Callable[[], None]

METHODS = ("activity", "graph")
"""How a launch is timed: by the device's own activity records, or as the slope of captured graphs."""


@dataclass(frozen=True)
class Timing:
    """Samples of one case by method, µs in the order taken, and the facts that were taken beside them.

    ``replays`` do again, unmeasured, just what was timed: the gate looks at what they leave in buffer 0.
    """

    samples: dict[str, list[float]]
    facts: dict[str, Any] = field(default_factory=dict)
    replays: Sequence[Call] = ()


class MeasurementError(RuntimeError):
    """A measurement that cannot be trusted: the message says what was found and what was expected."""


class Device(Protocol):
    """A device that cases are measured on.

    ``peak_gbps`` is the memory bandwidth that no measurement can beat, GB/s, or None where it is unknown.
    """

    name: str
    arch: Architecture
    l2_bytes: int
    peak_gbps: float | None
    torch_device: torch.device

    def calibrate(self, methods: Sequence[str]) -> dict[str, Any]:
        """Columns of a row: ``floor_us`` and ``quantum_us`` of the first method, ``copy_gbps``, ``matmul_tflops``, and
        ``sm_mhz``, the clock that the device has when nothing slows it down.
        """
        ...

    def synchronize(self) -> None:
        """Wait for the device; raises what went wrong on it."""
        ...

    def time(self, bind: Callable[[int], Call], nbytes: int, l2_state: str, methods: Sequence[str]) -> Timing:
        """Time an operation that moves ``nbytes``; ``bind(i)`` is the call on buffer i of those it rotates through."""
        ...
