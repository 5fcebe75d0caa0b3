"""What can be said of a kernel without running it: the compiler facts of a row, compiled once and then kept on disk.

``static_facts(launch, arch)`` gives columns of ``rows.Row``: registers, stack, spills, shared memory, the size of the
cubin, theoretical occupancy and what limits it, and the instruction mix. Of a launch with several steps, what counts
per thread or program is the largest of any step, occupancy the least, and instructions and cubins are added up.

They are kept in ``$XDG_CACHE_HOME/dsmla-bench/kernels`` (``~/.cache`` where that is not set), one JSON file each, named
by a hash over everything that they follow from: the source of the kernel and of all that it calls, types and alignment
of its arguments, constants, warps and stages, the target, the versions of Triton and ptxas, and the source of the
modules that read them off. Nothing in there goes stale, and the folder may be deleted at any time. Where a file cannot
be read, or holds other columns, the kernel is compiled anew.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import triton

from dsmla_bench.bench import compile as compiling
from dsmla_bench.bench import occupancy, sass
from dsmla_bench.bench.compile import DisassemblyError, compile_launch, disassemble, source_of
from dsmla_bench.column_types import field_types
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.launch import Launch
from dsmla_bench.places import reason, write_whole
from dsmla_bench.rows import Row

RESOURCES = ("registers", "stack_bytes", "spilled_bytes", "shared_bytes", "cubin_bytes", "num_warps")
OCCUPANCY = ("occupancy", "occupancy_limit")
MIX = tuple(field.name for field in dataclasses.fields(sass.InstructionMix))
STATIC_FACTS = (*RESOURCES, *OCCUPANCY, *MIX)
"""The columns of ``rows.Row`` that ``static_facts`` gives."""


def static_facts(launch: Launch, arch: Architecture) -> dict[str, Any]:
    """The columns ``STATIC_FACTS`` of ``launch`` on ``arch``, from the cache or the compiler. Raises CompileError."""
    known = cached_facts(launch, arch)
    if known is not None:
        return known
    facts = _compiled_facts(launch, arch)
    _keep(_file_of(launch, arch), facts)
    return facts


def cached_facts(launch: Launch, arch: Architecture) -> dict[str, Any] | None:
    """What the cache holds for ``launch`` on ``arch``; None where it holds nothing usable. Compiles nothing."""
    try:
        facts = json.loads(_file_of(launch, arch).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if _are_facts(facts) else None


def cache_folder() -> Path:
    """Where facts are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsmla-bench" / "kernels"


def _compiled_facts(launch: Launch, arch: Architecture) -> dict[str, Any]:
    steps = [(step, compile_launch(step, arch)) for step in launch.steps]
    per_kernel = ("registers", "stack_bytes", "spilled_bytes", "shared_bytes")
    facts: dict[str, Any] = {name: max(getattr(kernel, name) for _, kernel in steps) for name in per_kernel}
    facts["cubin_bytes"] = sum(len(kernel.cubin) for _, kernel in steps)
    facts["num_warps"] = max(step.num_warps for step, _ in steps)
    facts |= dict.fromkeys(OCCUPANCY)
    if arch.limits:
        found = min(
            (
                occupancy.occupancy(kernel.registers, kernel.shared_bytes, step.num_warps, arch.limits)
                for step, kernel in steps
            ),
            key=lambda one: one.percent,
        )
        facts |= {"occupancy": found.percent, "occupancy_limit": found.limit}
    try:
        machine_code = "\n".join(disassemble(kernel.cubin) for _, kernel in steps)
        return facts | dataclasses.asdict(sass.instruction_mix(machine_code))
    except DisassemblyError:
        return facts | dict.fromkeys(MIX)  # unknown, not zero


def _are_facts(facts: Any) -> bool:
    """Whether ``facts`` has every column, each None or of its type."""
    types = field_types(Row)
    return (
        isinstance(facts, dict)
        and set(facts) == set(STATIC_FACTS)
        and all(value is None or type(value) is types[name] for name, value in facts.items())
    )


def _file_of(launch: Launch, arch: Architecture) -> Path:
    steps = [(source_of(step).hash(), step.num_warps, step.num_stages) for step in launch.steps]
    identity = [*steps, arch.number, repr(arch.limits), *_tools()]
    return cache_folder() / f"{hashlib.sha256(json.dumps(identity).encode()).hexdigest()}.json"


@functools.cache
def _tools() -> tuple[str, ...]:
    """What else facts follow from: Triton, the ptxas that it calls, and the source of our own readers."""
    names = ("ptxas", "ptxas_blackwell")  # not every release of Triton has the second
    assemblers = [getattr(triton.knobs.nvidia, name) for name in names if hasattr(triton.knobs.nvidia, name)]
    readers = [Path(str(module.__file__)).read_bytes() for module in (compiling, occupancy, sass)]
    return (
        str(triton.__version__),
        *(str(tool.version) for tool in assemblers),
        *(hashlib.sha256(text).hexdigest() for text in readers),
    )


def _keep(file: Path, facts: dict[str, Any]) -> None:
    """Write ``file`` whole or not at all, whoever else is writing it."""
    try:
        write_whole(file, json.dumps(facts).encode("utf-8"))
    except OSError as error:
        warnings.warn(f"{file.parent}: compiled facts cannot be kept here ({reason(error)})", stacklevel=2)
