"""A provider that can be made 3 % slower on purpose, to see that ``dsmla-bench ab`` finds it.

It writes with this project's kernel, from a copy of the batch. With PLANTED_SLOWDOWN=1 in the environment the copy ends
with a repetition of its first 1/32: extra work, about 3 % of a large batch, that leaves the same bytes in the cache.

    pip install ./examples/planted_slowdown
    dsmla-bench ab --head "env PLANTED_SLOWDOWN=1 dsmla-bench" -- --providers planted --ops write --tokens 8192,65536
"""

import dataclasses
import os

import torch

EXTRA = 32
"""One token in so many is written twice."""


def with_extra_work(inputs):
    """A write's inputs in memory of their own, the first 1/32 of the batch once more at its end where asked for."""
    tokens = len(inputs.slot_mapping)
    extra = tokens // EXTRA if os.environ.get("PLANTED_SLOWDOWN") == "1" else 0
    latents = torch.cat([inputs.kv_c[:tokens], inputs.k_pe[:tokens]], dim=-1)
    latents = torch.cat([latents, latents[:extra]])
    width = inputs.kv_c.shape[1]
    slots = torch.cat([inputs.slot_mapping, inputs.slot_mapping[:extra]])
    return dataclasses.replace(inputs, kv_c=latents[:, :width], k_pe=latents[:, width:], slot_mapping=slots)


class Planted:
    """What ``dsmla_bench.kernels.providers.base.Provider`` asks for."""

    name = "planted"
    summary = "this project's write, slower with PLANTED_SLOWDOWN=1"

    def __init__(self, libraries):
        """``libraries`` holds the paths of compiled operator libraries by provider; this one needs none."""

    def why_not(self, operation, fmt, arch, shape=None):
        """Why it cannot serve a case, in one sentence; None when it can."""
        if operation.name != "write":
            return f"planted has no {operation.name}"
        return None if fmt.conversion(arch) else f"{arch.label} lacks a conversion that {fmt.name} needs"

    def conversion(self, operation, fmt, arch):
        """By the format's ``encode``, which only writing uses."""
        return fmt.conversion(arch)

    def plan(self, operation, fmt, inputs, arch):
        """The Triton launch on a copy of the batch."""
        return operation.plan(fmt, with_extra_work(inputs), arch)

    def bind(self, operation, fmt, inputs, arch):
        """What is timed; the copy is made here, outside the time."""
        launch = self.plan(operation, fmt, inputs, arch.number)
        return launch.run if launch else lambda: None

    def binary_sha256(self, operation, fmt, inputs, arch):
        """Which machine code served the case."""
        launch = self.plan(operation, fmt, inputs, arch.number)
        return launch.binary_sha256() if launch else None

    def version(self):
        """The version of the implementation, or None."""
        return "1"


PROVIDERS = (Planted,)
