"""What a metric is called, its unit, and which way is better: the one table that comparisons and exporters read.

``METRICS`` maps a column to its ``Metric``. A column that is not in it is no figure of merit and is never judged.
``compare_exactly`` judges figures that repeat to the last digit (bytes, errors of seeded data, facts of machine code);
times have noise and are judged by ``verdicts``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher", "nearer 0", "nearer 1"]
EXACT_TOLERANCE = 1e-6
"""Relative difference up to which two figures that should repeat are equal: what another order of additions makes."""


@dataclass(frozen=True)
class Metric:
    """A figure of merit. ``unit`` is "" for pure numbers; ``points`` marks shares whose changes are read in points."""

    label: str
    unit: str
    better: Better
    points: bool = False

    def badness(self, value: float) -> float:
        """A number that is larger the worse ``value`` is."""
        target = {"nearer 0": 0.0, "nearer 1": 1.0}.get(self.better)
        if target is not None:
            return abs(value - target)
        return value if self.better == "lower" else -value

    def change(self, before: float, now: float) -> str:
        """The change in words: "+5.0 %", "-1.0 pt" for shares, "0 → 3" where a percentage has no base."""
        if self.points:
            return f"{100 * (now - before):+.1f} pt"
        if before == 0 or not math.isfinite(before):
            return f"{before:.6g} → {now:.6g}"
        return f"{100 * (now - before) / abs(before):+.1f} %"


METRICS: dict[str, Metric] = {
    "us": Metric("time", "µs", "lower"),
    "us_check": Metric("time by the second method", "µs", "lower"),
    "us_sum": Metric("time in kernels", "µs", "lower"),
    "kcycles": Metric("time in cycles", "kcycles", "lower"),
    "predicted_us": Metric("predicted floor", "µs", "lower"),
    "gbps": Metric("bandwidth", "GB/s", "higher"),
    "bound_share": Metric("share of the floor", "", "higher", points=True),
    "bytes_per_token": Metric("bytes per token", "bytes", "lower"),
    "bytes_read": Metric("bytes read", "bytes", "lower"),
    "bytes_written": Metric("bytes written", "bytes", "lower"),
    "bytes_differing": Metric("wrong bytes", "bytes", "lower"),
    "rel_l2": Metric("rel-L2 error", "", "lower"),
    "snr_db": Metric("SNR", "dB", "higher"),
    "max_abs": Metric("largest error", "", "lower"),
    "max_rel": Metric("largest relative error", "", "lower"),
    "cosine": Metric("cosine", "", "nearer 1"),
    "gain": Metric("gain", "", "nearer 1"),
    "mean_bias": Metric("mean error", "", "nearer 0"),
    "clipped": Metric("clipped values", "", "lower"),
    "flushed": Metric("flushed values", "", "lower"),
    "non_finite_lost": Metric("non-finite values lost", "", "lower"),
    "non_finite_made": Metric("non-finite values made", "", "lower"),
    "tile_p50": Metric("median tile error", "", "lower"),
    "tile_p90": Metric("90 % tile error", "", "lower"),
    "tile_p99": Metric("99 % tile error", "", "lower"),
    "tile_max": Metric("worst tile error", "", "lower"),
    "logit_rms": Metric("logit error, rms", "nats", "lower"),
    "logit_max": Metric("logit error, largest", "nats", "lower"),
    "kl_mean": Metric("KL divergence, mean", "nats", "lower"),
    "kl_p99": Metric("KL divergence, 99 %", "nats", "lower"),
    "kl_max": Metric("KL divergence, largest", "nats", "lower"),
    "output_rel_l2": Metric("attention output rel-L2", "", "lower"),
    "output_worst": Metric("worst attention output rel-L2", "", "lower"),
    "accuracy": Metric("accuracy", "", "higher", points=True),
}


def compare_exactly(metric: Metric, before: float, now: float, tolerance: float = EXACT_TOLERANCE) -> str:
    """The verdict on two figures that should repeat: "same", "better" or "worse"."""
    if math.isclose(before, now, rel_tol=tolerance):
        return "same"
    return "worse" if metric.badness(now) > metric.badness(before) else "better"
