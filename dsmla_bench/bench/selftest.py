"""The harness measures itself: does it read back what is known, and what is the smallest thing that it can tell.

Kernels that spin for 2, 5, 10 and 20 µs by the multiprocessor's own cycle counter are timed like any operation, by
every method; less the cost of a launch, each must come back within 2 % or 0.1 µs. A copy that fits into L2 must be
faster hot than cold. Work that an operation puts on a second stream must be in its time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dsmla_bench.bench.device import Call, Device

SPINS_US = (2.0, 5.0, 10.0, 20.0)
BASE_US = 1.0
"""The spin whose excess over its own count is the cost of a launch. An empty kernel would not do: in a graph its launch
hides behind the one before."""
TOLERANCE, TOLERANCE_US = 0.02, 0.1
COPY_BYTES = 4 * 2**20
REPEATS = 9


class TestableDevice(Device, Protocol):
    """A device that can also be given known work."""

    def spin(self, microseconds: float) -> Call:
        """A call that spins for so long by the multiprocessor's cycle counter."""
        ...

    def spun_us(self) -> float:
        """How long the last spin took by the multiprocessor's cycle counter."""
        ...

    def copy(self, nbytes: int) -> Call:
        """A call that copies ``nbytes`` between two buffers of its own."""
        ...

    def on_side_stream(self, call: Call) -> Call:
        """A call that does ``call`` on a second stream and joins it."""
        ...


@dataclass(frozen=True)
class Check:
    """One thing that must hold: found against expected, in ``unit``, and whether it does."""

    name: str
    method: str
    expected: str
    found: float
    unit: str
    ok: bool


def run_checks(device: TestableDevice, methods: Sequence[str]) -> Iterator[Check]:
    """Every check by every method."""
    for method in methods:
        launch = _time(device, device.spin(BASE_US), method) - device.spun_us()
        for wanted in SPINS_US:
            read = _time(device, device.spin(wanted), method) - launch
            known = device.spun_us()
            ok = abs(read - known) <= max(TOLERANCE * known, TOLERANCE_US)
            yield Check(
                f"spin {wanted:g} µs",
                method,
                f"{known:.3f} ± {max(TOLERANCE * known, TOLERANCE_US):.3f}",
                read,
                "µs",
                ok,
            )
        aside = _time(device, device.on_side_stream(device.spin(10.0)), method)
        known = device.spun_us()
        yield Check("work on a second stream", method, f"at least {known:.3f}", aside, "µs", aside >= 0.98 * known)
        hot = _time(device, device.copy(COPY_BYTES), method, l2_state="hot")
        cold = statistics.median(
            device.time(lambda _: device.copy(COPY_BYTES), 2 * COPY_BYTES, "cold", [method]).samples[method]
        )
        yield Check("cold copy, hot one first", method, f"more than {hot:.3f}", cold, "µs", cold > 1.1 * hot)


def resolution(device: TestableDevice, method: str) -> dict[str, Any]:
    """Floor, quantum and copy bandwidth of the machine, and the smallest effect that one row of one process resolves.

    ``smallest_effect`` is the share of 5 µs by which repeated measurements of one unchanged kernel differ at most, or
    twice the quantum where that is more.
    """
    facts = device.calibrate([method])
    medians = [_time(device, device.spin(5.0), method) for _ in range(REPEATS)]
    spread = max(medians) - min(medians)
    facts["smallest_effect"] = max(spread, 2 * (facts.get("quantum_us") or 0.0)) / statistics.median(medians)
    return facts


def _time(device: TestableDevice, call: Call, method: str, l2_state: str = "hot") -> float:
    return statistics.median(device.time(lambda _: call, 0, l2_state, [method]).samples[method])
