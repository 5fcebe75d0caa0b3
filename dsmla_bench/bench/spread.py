"""Which GPU measures which cases.

Cases that are compared with each other are measured on one GPU, in every process: those that share their inputs, and so
differ in provider or L2 state only. ``spread`` cuts the groups of each operation, in the order of a table, into as many
stretches of equal length in time as there are GPUs. Neighbours share kernels, so a kernel is compiled by one GPU's
workers, seldom by two, and found in the cache by all later ones. The same cases and GPUs always give the same shares:
a nightly run finds every row on the GPU of the night before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from dsmla_bench.bench.gpus import Gpu
from dsmla_bench.rows import Case, Measurement, inputs_key

MEASURE_S, SLOW_MEASURE_S = 0.12, 0.3
"""Seconds, measured on an H200: a timed case of ours or production's, and one of the reference."""

Begun = Mapping[tuple[Any, ...], str]
"""``inputs_key`` of a comparison group → uuid of the GPU on which it was begun."""


def seconds_of(case: Case) -> float:
    """About how long one process measures a case."""
    return SLOW_MEASURE_S if case.provider == "reference" else MEASURE_S


def comparison_groups(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases in groups whose rows are compared with each other, in the order in which groups begin."""
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in dict.fromkeys(cases):
        groups.setdefault(inputs_key(case), []).append(case)
    return list(groups.values())


def begun_on(measurements: Sequence[Measurement]) -> Begun:
    """Where the groups of these measurements were begun."""
    begun: dict[tuple[Any, ...], str] = {}
    for measurement in measurements:
        uuid = measurement.facts.get("device_uuid")
        if uuid is not None:
            begun.setdefault(inputs_key(measurement.case), uuid)
    return begun


def spread(
    cases: Sequence[Case],
    gpus: Sequence[Gpu],
    begun: Begun | None = None,
    seconds: Callable[[Case], float] = seconds_of,
) -> dict[str, list[Case]]:
    """Uuid of each GPU → its share of ``cases``; all GPUs are of the cases' architecture.

    Groups that were ``begun`` on one of the GPUs stay there. Every other operation is dealt in reverse, so that what
    is slow in all operations, such as a format, is not all on one GPU.
    """
    shares: dict[str, list[Case]] = {gpu.uuid: [] for gpu in gpus}
    uuids = list(shares)
    for _, of_operation in groupby(comparison_groups(cases), key=lambda group: group[0].operation):
        groups = list(of_operation)
        for group, part in zip(groups, _cut([sum(map(seconds, group)) for group in groups], len(uuids)), strict=True):
            place = (begun or {}).get(inputs_key(group[0]))
            shares[place if place in shares else uuids[part]] += group
        uuids.reverse()
    return shares


def _cut(lengths: Sequence[float], parts: int) -> list[int]:
    """For each length in a row the number of the part, of ``parts`` equally long ones, in which its middle lies."""
    ends = list(accumulate(lengths))
    total = ends[-1] or 1.0
    middles = [(end - length / 2) / total for end, length in zip(ends, lengths, strict=True)]
    return [min(int(parts * middle), parts - 1) for middle in middles]
