"""A provider in one file: this project's kernels with eight warps a program instead of the number that they choose.

To measure it beside the others, announce it from a package of yours:

    [project.entry-points."dsmla_bench.providers"]
    eight_warps = "eight_warps:PROVIDERS"
"""

import dataclasses


class EightWarps:
    """What ``dsmla_bench.kernels.providers.base.Provider`` asks for."""

    name = "eight_warps"
    summary = "this project's kernels with eight warps a program"

    def __init__(self, libraries):
        """``libraries`` holds the paths of compiled operator libraries by provider; this one needs none."""

    def why_not(self, operation, fmt, arch, shape=None):
        """Why it cannot serve a case, in one sentence; None when it can."""
        return None if fmt.conversion(arch) else f"{arch.label} lacks a conversion that {fmt.name} needs"

    def conversion(self, operation, fmt, arch):
        """By the format's ``encode``, which only writing uses."""
        return fmt.conversion(arch) if operation.encodes else None

    def plan(self, operation, fmt, inputs, arch):
        """The Triton launch, which machines without a GPU interpret and cross-compile. None where it is no Triton."""
        launch = operation.plan(fmt, inputs, arch)
        return launch and dataclasses.replace(launch, num_warps=8)

    def bind(self, operation, fmt, inputs, arch):
        """What is timed: a function without arguments. Whatever can be prepared is prepared here, outside the time."""
        launch = self.plan(operation, fmt, inputs, arch.number)
        return launch.run if launch else lambda: None

    def binary_sha256(self, operation, fmt, inputs, arch):
        """Which machine code served the case, so that two runs can tell whether it changed."""
        launch = self.plan(operation, fmt, inputs, arch.number)
        return launch.binary_sha256() if launch else None

    def version(self):
        """The version of the implementation, or None."""
        return "1"


PROVIDERS = (EightWarps,)
