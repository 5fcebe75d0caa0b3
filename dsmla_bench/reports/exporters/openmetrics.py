"""OpenMetrics text for Prometheus and its kin: a gauge per metric in base units, the axes as labels.

``dsmla_row_ok`` is 1 for a row with figures and 0 for one without, whose status is a label: an absent figure is marked,
never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsmla_bench.reports.exporters import Exporter
from dsmla_bench.reports.exporters.exported import exported_rows
from dsmla_bench.reports.metrics import Metric
from dsmla_bench.results import Run

BASE_UNITS = {
    "µs": ("seconds", 1e-6),
    "GB/s": ("bytes_per_second", 1e9),
    "bytes": ("bytes", 1.0),
    "kcycles": ("cycles", 1e3),
    "dB": ("decibels", 1.0),
    "nats": ("nats", 1.0),
    "": ("", 1.0),
}
"""Unit of a metric → the unit's name here, and how many of those it is."""
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def export(run: Run) -> str:
    """All figures and statuses, a family of metrics after the other."""
    device = (run.manifest.get("device") or {}).get("name") or "CPU"
    families: dict[str, list[str]] = {}
    for row in exported_rows(run):
        labels = {**row.axes, "device": device}
        ok = _sample("dsmla_row_ok", {**labels, "status": row.status}, float(bool(row.figures)))
        families.setdefault(_head("dsmla_row_ok", "", "whether the row has figures"), []).append(ok)
        for figure in row.figures:
            unit, factor = BASE_UNITS[figure.metric.unit]
            name = _family(figure.metric, unit)
            sample = _sample(name, labels, figure.value * factor)
            families.setdefault(_head(name, unit, figure.metric.label), []).append(sample)
    return "".join(head + "".join(samples) for head, samples in families.items()) + "# EOF\n"


def _family(metric: Metric, unit: str) -> str:
    """ "dsmla_time_seconds"."""
    words = re.sub(r"[^a-z0-9]+", "_", metric.label.lower()).strip("_")
    return "_".join(filter(None, ["dsmla", words.removesuffix(f"_{unit}"), unit]))


def _head(name: str, unit: str, summary: str) -> str:
    lines = [f"# TYPE {name} gauge", f"# UNIT {name} {unit}" if unit else "", f"# HELP {name} {summary}"]
    return "".join(f"{line}\n" for line in lines if line)


def _sample(name: str, labels: Mapping[str, Any], value: float) -> str:
    pairs = ",".join(f'{label}="{str(text).translate(ESCAPES)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value!r}\n"


EXPORTERS = (Exporter("openmetrics", "OpenMetrics text, for Prometheus' textfile collector or a push gateway", export),)
