"""What a kernel's machine code consists of: SASS text, as ``nvdisasm -c`` prints it, → an ``InstructionMix``.

Every instruction of the code counts once, however often it runs and whatever predicate it has: a count of code, not of
work. The NOPs that pad the end are left out. Which class an instruction belongs to follows from its name:

    global loads, stores   LDG, STG (and LD, ST, LDGSTS) by the bits that one thread moves: .U8 and .S8 8, .U16 and
                           .S16 16, .64, .128, .256, and 32 where nothing is said
    local loads, stores    LDL, STL: spilled registers, or an array of the kernel's own
    shared memory          LDS, STS, LDSM, STSM, ATOMS
    barriers               BAR, WARPSYNC, SYNCS: waiting for other threads
    conversions            between number formats: F2F, F2FP, F2I, I2F, I2FP and their like, and HADD2.F32, which is how
                           a half becomes a float. A bf16 becomes a float by a shift, which counts as integer
    floating point         F…, H… and D… arithmetic, comparisons and selections, MUFU, tensor core products
    integer                I…, LOP3, LEA, SHF, PRMT, SEL, … including addresses, except the moves that ptxas writes as
                           IMAD.MOV
    other                  moves, constants, control flow, shuffles, votes, special registers

Uniform instructions (U…) count with those they mirror. Names are those of SM 8.0 to 12.1, as listed in NVIDIA's manual
of the CUDA binary utilities.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

WIDTHS = (8, 16, 32, 64, 128, 256)
"""Bits that one thread moves with one global load or store."""

_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_GLOBAL_LOADS = {"LDG", "LD", "LDGSTS"}
_GLOBAL_STORES = {"STG", "ST"}
_SHARED = {"LDS", "STS", "LDSM", "STSM", "ATOMS"}
_BARRIERS = {"BAR", "WARPSYNC", "SYNCS"}
_CONVERSIONS = {"F2F", "F2FP", "F2I", "F2IP", "I2F", "I2FP", "I2I", "I2IP", "FRND"}
_INTEGER = {
    *("IADD", "IADD3", "IMAD", "IMUL", "IABS", "ISETP", "ISET", "IMNMX", "VIMNMX", "VIMNMX3", "VIADD", "VIADDMNMX"),
    *("LEA", "LOP", "LOP3", "SHF", "SHL", "SHR", "PRMT", "SEL", "SGXT", "BMSK", "BREV", "FLO", "POPC", "IDP", "IDP4A"),
}
_FLOAT = {
    *("FADD", "FMUL", "FFMA", "FMNMX", "FMNMX3", "FSEL", "FSET", "FSETP", "FCHK", "FSWZADD", "FADD2", "FMUL2", "FFMA2"),
    *("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "HSETP2", "DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "MUFU"),
    *("HMMA", "IMMA", "QMMA", "OMMA", "DMMA", "HGMMA", "QGMMA", "IGMMA"),
}


@dataclass(frozen=True)
class InstructionMix:
    """How many instructions of each class the code holds; the fields are columns of ``rows.Row``.

    bytes_per_global_instruction   bytes that one thread moves with all its global loads and stores / their number;
                                   None where there are none
    native_fp8, native_fp4         whether a conversion instruction to or from e4m3, e2m1 occurs
    """

    instructions: int
    global_loads_8: int
    global_loads_16: int
    global_loads_32: int
    global_loads_64: int
    global_loads_128: int
    global_loads_256: int
    global_stores_8: int
    global_stores_16: int
    global_stores_32: int
    global_stores_64: int
    global_stores_128: int
    global_stores_256: int
    bytes_per_global_instruction: float | None
    local_loads: int
    local_stores: int
    shared_instructions: int
    barriers: int
    conversions: int
    float_instructions: int
    integer_instructions: int
    other_instructions: int
    native_fp8: bool
    native_fp4: bool


def instruction_mix(sass: str) -> InstructionMix:
    """Count the instructions of ``sass``. Raises ValueError when it holds none."""
    names = [name for name in _LINE.findall(sass) if name != "NOP"]
    if not names:
        raise ValueError("this text holds no SASS instruction; expected what nvdisasm -c prints")
    classes = Counter(_class_of(name) for name in names)
    loads = Counter(width_of(name) for name in names if _stem(name) in _GLOBAL_LOADS)
    stores = Counter(width_of(name) for name in names if _stem(name) in _GLOBAL_STORES)
    moved = loads + stores
    mean = sum(bits * count for bits, count in moved.items()) / 8 / moved.total() if moved else None
    by_width = {f"global_loads_{bits}": loads[bits] for bits in WIDTHS}
    by_width |= {f"global_stores_{bits}": stores[bits] for bits in WIDTHS}
    return InstructionMix(
        instructions=len(names),
        **by_width,
        bytes_per_global_instruction=mean,
        local_loads=classes["local load"],
        local_stores=classes["local store"],
        shared_instructions=classes["shared"],
        barriers=classes["barrier"],
        conversions=classes["conversion"],
        float_instructions=classes["float"],
        integer_instructions=classes["integer"],
        other_instructions=classes["other"],
        native_fp8=any(_converts(name, "E4M3") for name in names),
        native_fp4=any(_converts(name, "E2M1") for name in names),
    )


def width_of(name: str) -> int:
    """Bits that a load or store of this name moves for one thread: 64 for ``LDG.E.64``."""
    for part in name.split(".")[1:]:
        bits = part.lstrip("US")
        if bits.isdigit() and int(bits) in WIDTHS:
            return int(bits)
    return 32


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _class_of(name: str) -> str:
    stem, modifiers = _stem(name), name.split(".")[1:]
    if stem in _GLOBAL_LOADS | _GLOBAL_STORES:
        return "global"
    if stem in ("LDL", "STL"):
        return "local load" if stem == "LDL" else "local store"
    if stem in _CONVERSIONS or (stem == "HADD2" and "F32" in modifiers):
        return "conversion"
    if "MOV" in modifiers:
        return "other"
    classes = {"shared": _SHARED, "barrier": _BARRIERS, "float": _FLOAT, "integer": _INTEGER}
    for name_of_class, stems in classes.items():
        if stem in stems or (stem.startswith("U") and stem[1:] in stems):
            return name_of_class
    return "other"


def _converts(name: str, dtype: str) -> bool:
    return _stem(name) in _CONVERSIONS and dtype in name.split(".")
