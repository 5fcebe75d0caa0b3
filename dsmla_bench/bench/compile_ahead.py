"""Compiling what a sweep is going to launch, by several processes at once, into Triton's cache on disk.

A worker that measures compiles each kernel when it meets it, one after another, while the device waits. Where kernels
are many and slow to compile, as in tuning, it is worth having all of them in the cache first. Nothing else follows from
it: what cannot be compiled here is met again by the worker, whose answer says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from dsmla_bench.bench.cases import by_kernel
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.rows import Case

Planner = Callable[[Case], Launch]


def compile_ahead(cases: Sequence[Case], plan: Planner, device: int, workers: int) -> None:
    """Compile the launches of ``cases`` for CUDA device ``device`` in at most ``workers`` processes.

    ``plan`` gives the launch of a case, planned without memory; it is a function of a module. Cases that differ in
    their shape only often share a kernel, so they go to one process.
    """
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for group in by_kernel(cases):
            pool.submit(_compile, group, plan, device)


def _compile(cases: Sequence[Case], plan: Planner, device: int) -> None:
    """Compile the launches of these cases in this process."""
    torch.cuda.set_device(device)
    for case in cases:
        plan(case).compile()
