"""The few PTX instructions of the packed e2m1 conversions, in numpy, so that their assembly is tested without a GPU.

A register is a uint32 array; every lane of a warp is an element. Semantics: PTX ISA 9.0, chapter 9.7.
"""

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

Register = np.ndarray


def run(assembly: str, outputs: int, *inputs: Register) -> list[Register]:
    """What ``assembly``, a block in braces with operands $0, $1, …, leaves in its first ``outputs`` operands."""
    registers = {f"${outputs + index}": value for index, value in enumerate(inputs)}
    for statement in assembly.strip(" {}\n").split(";"):
        name, _, rest = statement.strip().partition(" ")
        if name and name != ".reg":
            target, *operands = (operand.strip() for operand in rest.split(","))
            with np.errstate(all="ignore"):
                registers[target] = _INSTRUCTIONS[name](*(_value(operand, registers) for operand in operands))
    return [registers[f"${index}"] for index in range(outputs)]


def _value(operand: str, registers: dict[str, Register]) -> Register:
    return np.uint32(int(operand, 0)) if re.match(r"\d", operand) else registers[operand]


def _halves(word: Register) -> tuple[Register, Register]:
    return (word & np.uint32(0xFFFF)).astype(np.uint16), (word >> np.uint32(16)).astype(np.uint16)


def _joined(low: Register, high: Register) -> Register:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def _of_halves(operation: Callable[..., Register]) -> Callable[..., Register]:
    def both(*words: Register) -> Register:
        low, high = zip(*map(_halves, words), strict=True)
        return _joined(operation(*low), operation(*high))

    return both


def _multiplied(a: Register, b: Register) -> Register:
    """fp32; a NaN comes out as 0x7FFFFFFF."""
    product = a.view(np.float32) * b.view(np.float32)
    return np.where(np.isnan(product), np.uint32(0x7FFFFFFF), product.view(np.uint32))


def _half(values: Register) -> Register:
    """fp32 → fp16, nearest even; a NaN comes out as 0x7FFF."""
    values = values.view(np.float32)
    return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))


def _smaller_half(a: Register, b: Register) -> Register:
    """The smaller magnitude, a NaN aside, under the product of the signs."""
    smaller = np.fmin(np.abs(a.view(np.float16)), np.abs(b.view(np.float16))).view(np.uint16)
    return smaller | ((a ^ b) & np.uint16(0x8000))


def _multiplied_bf16(a: Register, b: Register) -> Register:
    """bf16, rounded once, as fp32 holds every product; a NaN comes out as 0x7FFF."""
    product = a.view(ml_dtypes.bfloat16).astype(np.float32) * b.view(ml_dtypes.bfloat16).astype(np.float32)
    return np.where(np.isnan(product), np.uint16(0x7FFF), product.astype(ml_dtypes.bfloat16).view(np.uint16))


def _permuted(a: Register, b: Register, selectors: Register) -> Register:
    """Four bytes of b:a, each by three bits of a selector; with its fourth bit, eight copies of the byte's top bit."""
    found = np.uint32(0)
    for byte in range(4):
        selector = selectors >> np.uint32(4 * byte)
        place = np.uint32(8) * (selector & np.uint32(3))
        chosen = np.where(selector & np.uint32(4), b >> place, a >> place) & np.uint32(0xFF)
        chosen = np.where(selector & np.uint32(8), np.where(chosen & 0x80, 0xFF, 0), chosen).astype(np.uint32)
        found = found | chosen << np.uint32(8 * byte)
    return found


def _logic(a: Register, b: Register, c: Register, table: Register) -> Register:
    """Bit i of ``table`` is the result where the operands' bits spell i, a's first."""
    found = np.uint32(0)
    for index in range(8):
        if int(table) >> index & 1:
            found = found | (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
    return found


_INSTRUCTIONS: dict[str, Callable[..., Register]] = {
    "mov.b32": lambda a: a,
    "shl.b32": np.left_shift,
    "shr.u32": np.right_shift,
    "and.b32": np.bitwise_and,
    "add.u32": np.add,
    "lop3.b32": _logic,
    "prmt.b32": _permuted,
    "mul.f32": _multiplied,
    "cvt.rn.f16x2.f32": lambda high, low: _joined(_half(low), _half(high)),
    "min.xorsign.abs.f16x2": _of_halves(_smaller_half),
    "mul.bf16x2": _of_halves(_multiplied_bf16),
}
