"""Cross-compiling a launch for an architecture that need not be present.

``compile_launch(launch, arch)`` compiles the very kernel that ``launch`` would run on that architecture, not those of
steps after it, with Triton's own compiler and the ptxas that it ships. Registers and stack are read off the cubin by
cuobjdump; what of the stack is spilled registers is ptxas's own figure (``ptxas -v``), asked for only where there is a
stack; ``disassemble`` gives the machine code. No GPU and no driver is needed. This process must not be interpreting.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.launch import Launch

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class CompileError(RuntimeError):
    """A kernel that cannot be compiled for a target. The message is a sentence, ``__cause__`` the compiler's error."""


class DisassemblyError(CompileError):
    """Machine code that the disassembler at hand cannot read."""


@dataclass(frozen=True)
class CompiledKernel:
    """What the compiler made of one launch: resources of the cubin, and the PTX and cubin themselves.

    registers, stack_bytes and spilled_bytes (ptxas's spill stores) are per thread, shared_bytes per program.
    """

    registers: int
    stack_bytes: int
    spilled_bytes: int
    shared_bytes: int
    ptx: str
    cubin: bytes


def compile_launch(launch: Launch, arch: Architecture) -> CompiledKernel:
    """Compile ``launch`` for ``arch``. Raises CompileError."""
    try:
        compiled, _ = _compile(launch, arch)
    except Exception as error:  # the compiler raises whatever its passes raise; all of it means the same to a user
        raise CompileError(f"Triton {triton.__version__} cannot compile this kernel for {arch.label}") from error
    cubin = compiled.asm["cubin"]
    registers, stack = resource_usage(cubin)
    spilled = _spill_stores(launch, arch) if stack else 0
    return CompiledKernel(registers, stack, spilled, compiled.metadata.shared, compiled.asm["ptx"], cubin)


def _compile(launch: Launch, arch: Architecture) -> tuple[Any, str]:
    """Triton's compiled kernel and what it printed: where assembling fails the PTX, which its exception holds too."""
    target = GPUTarget("cuda", arch.number, 32)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": False}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        return triton.compile(source_of(launch), target=target, options=options), printed.getvalue()


def _spill_stores(launch: Launch, arch: Architecture) -> int:
    """Bytes of spill stores that ptxas reports when Triton compiles ``launch`` once more. Raises CompileError."""
    with triton.knobs.nvidia.scope(), triton.knobs.compilation.scope():
        triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
        _, log = _compile(launch, arch)
    found = re.search(r"(\d+) bytes spill stores", log)
    if found is None:
        raise CompileError(f"ptxas reported no spill stores: {log.strip()[:200] or 'it printed nothing'}")
    return int(found[1])


def source_of(launch: Launch) -> ASTSource:
    """The compiler's view of a launch: argument types, what is known of their alignment, and the constants.

    The same specialisation that Triton makes at launch: pointers and integers that are multiples of 16 are known to be,
    an integer 1 and None become constants.
    """
    parameters = launch.kernel.params
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, (parameter, argument) in enumerate(zip(parameters, launch.args, strict=False)):
        specialise = not parameter.do_not_specialize
        signature[parameter.name], divisible = _argument_type(argument)
        if argument is None or (specialise and isinstance(argument, int) and argument == 1):
            signature[parameter.name], constants[parameter.name] = "constexpr", argument
        elif specialise and divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(launch.constants, "constexpr")
    ordered = {parameter.name: signature[parameter.name] for parameter in parameters}
    return ASTSource(launch.kernel, ordered, constants, attributes)


def _argument_type(argument: Any) -> tuple[str, bool]:
    """Triton's type of a run-time argument, and whether it is a multiple of 16."""
    if argument is None:
        return "constexpr", False
    if isinstance(argument, float):
        return "fp32", False
    if isinstance(argument, torch.Tensor):
        return _POINTERS[argument.dtype], argument.data_ptr() % 16 == 0
    return ("i32" if -(2**31) <= argument < 2**31 else "i64"), argument % 16 == 0


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and local-memory bytes per thread of the kernel in ``cubin``.

    Read with the cuobjdump that Triton ships. Raises CompileError when its answer cannot be read.
    """
    answer = _run_on(cubin, triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage")
    found = {name: re.search(rf"\b{name}:(\d+)", answer.stdout) for name in ("REG", "STACK")}
    if not all(found.values()):
        raise CompileError(f"cuobjdump gave no resource usage: {(answer.stdout + answer.stderr).strip()[:200]}")
    registers, stack = (int(match[1]) for match in found.values() if match)
    return registers, stack


def disassemble(cubin: bytes) -> str:
    """The machine code of ``cubin`` as text, by the nvdisasm that Triton ships. Raises DisassemblyError.

    The one of Triton 3.6 is older than its ptxas for Blackwell and cannot read code for sm_103.
    """
    answer = _run_on(cubin, triton.knobs.nvidia.nvdisasm.path, "--print-code")
    if answer.returncode:
        raise DisassemblyError(f"nvdisasm cannot read the cubin: {(answer.stdout + answer.stderr).strip()[:200]}")
    return answer.stdout


def _run_on(cubin: bytes, tool: str, option: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        return subprocess.run([tool, option, str(file)], capture_output=True, text=True, check=False)
