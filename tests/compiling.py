"""Run as a script, in a process that does not interpret: compiles kernels and prints what came out as JSON.

    launched  for every operation, format and shape: whether ``compile_launch`` gives the PTX that a launch would
    e2m1      for every architecture: whether the write of nvfp4_ds_mla holds the e2m1 conversion instruction

A launch is compiled by Triton itself, for a device of which only the architecture is real.
"""

import dataclasses
import json
import re

import torch
from caches import geometry_of
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from dsmla_bench.bench.compile import compile_launch, disassemble
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import all_formats, default_formats, get_format
from dsmla_bench.kernels.operations import Shape, get_operation

SM90 = Architecture(9, 0)
CPU, META = torch.device("cpu"), torch.device("meta")


class DeviceInName:
    """What Triton asks a driver before it compiles for a launch."""

    def get_current_target(self):
        return GPUTarget("cuda", SM90.number, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def plain(operation, fmt):
    """What the sweep measures: aligned tensors, and a block table with one page for each request."""
    return operation.make_inputs(fmt, Shape(5, 3, geometry=geometry_of(fmt)), META, torch.Generator())


def unaligned(operation, fmt):
    """Odd addresses and strides, the other index types, one token, and seq_starts where there are some."""
    geometry = geometry_of(fmt)
    inputs = operation.make_inputs(fmt, Shape(1, geometry=geometry), CPU, torch.Generator())
    wide, rank = torch.zeros(4, 1 + 577, dtype=torch.bfloat16), geometry.kv_lora_rank
    cache = unaligned_cache(fmt, geometry)
    if operation.name == "write":
        slots = inputs.slot_mapping.int()
        return dataclasses.replace(
            inputs, kv_c=wide[:, 1 : 1 + rank], k_pe=wide[:, 513:577], cache=cache, slot_mapping=slots
        )
    starts = torch.zeros(1, dtype=torch.int64)
    return dataclasses.replace(
        inputs,
        workspace=wide[:1, 1 : 1 + rank + geometry.rope_dim],
        cache=cache,
        workspace_starts=starts,
        seq_starts=starts,
    )


def unaligned_cache(fmt, geometry):
    """Two pages of two tokens at an address that 16 does not divide, their rows padded where rows may be."""
    row_bytes, page_bytes = fmt.row_bytes(geometry), fmt.page_bytes(2, geometry)
    if fmt.suffix_bytes:
        pages = torch.zeros(4 + 2 * page_bytes, dtype=torch.uint8)[4:].view(2, page_bytes)
        return pages[:, : 2 * row_bytes].unflatten(1, (2, row_bytes))
    return torch.zeros(2, 3, row_bytes + 4, dtype=torch.uint8)[:, 1:, :row_bytes]


def huge(operation, fmt):
    """A page stride that needs 64 bits, in sixteen tokens of a hundred requests."""
    inputs = operation.make_inputs(fmt, Shape(16, 100), META, torch.Generator())
    shape, strides = (2, 64, fmt.row_bytes()), (2**31, fmt.row_bytes(), 1)
    cache = torch.empty_strided(shape, strides, dtype=torch.uint8, device=META)
    return dataclasses.replace(inputs, cache=cache)


def compiled_by_a_launch(launch):
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": False}
    return launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.constants, **options)


def merged_conversions():
    """By format and alignment: what conversions to e4m3 on sm_90 merge with that is no such conversion's result."""
    write, found = get_operation("write"), {}
    for fmt in all_formats():
        for shape in (plain, unaligned):
            sass = disassemble(compile_launch(write.plan(fmt, shape(write, fmt), SM90.number), SM90).cubin)
            found[f"{fmt.key} {shape.__name__}"] = foreign_merges(sass)
    return found


def foreign_merges(sass):
    """Two conversions fill one register, the second merging with the first; a merge with anything else is foreign."""
    writer, foreign = {"RZ": "F2FP.SATFINITE.E4M3"}, []
    for name, target, rest in re.findall(
        r"^\s+/\*\w{4,}\*/\s+(?:@\S+ )?([A-Z][\w.]+) (\w+), (.*?) ;", sass, re.MULTILINE
    ):
        merged = rest.split(", ")[-1].removesuffix(".reuse")
        if name.startswith("F2FP.SATFINITE.E4M3") and not writer.get(merged, "").startswith("F2FP.SATFINITE.E4M3"):
            foreign.append(f"{name} merges with {merged} of {writer.get(merged)}")
        writer[target] = name
    return foreign


def main():
    driver.set_active(DeviceInName())
    launched = {}
    for name in ("write", "gather"):
        operation = get_operation(name)
        for fmt in default_formats():
            for shape in (plain, unaligned, huge):
                launch = operation.plan(fmt, shape(operation, fmt), SM90.number)
                same = compiled_by_a_launch(launch).asm["ptx"] == compile_launch(launch, SM90).ptx
                launched[f"{name} {fmt.name} {shape.__name__}"] = same
    write, nvfp4 = get_operation("write"), get_format("nvfp4_ds_mla")
    e2m1 = {}
    for arch in map(Architecture.parse, ("sm90", "sm100", "sm103", "sm120")):
        ptx = compile_launch(write.plan(nvfp4, plain(write, nvfp4), arch.number), arch).ptx
        e2m1[arch.name] = "cvt.rn.satfinite.e2m1x2.f32" in ptx
    print(json.dumps({"launched": launched, "e2m1": e2m1, "merged": merged_conversions()}))


if __name__ == "__main__":
    main()
