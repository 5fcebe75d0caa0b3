"""Counting machine code: which class every instruction belongs to, and how wide it is."""

import dataclasses

import pytest

from dsmla_bench.bench.sass import instruction_mix, width_of

COUNTS = {
    "global_loads_8": "LDG.E.U8 R3, desc[UR4][R2.64]",
    "global_loads_16": "@!P0 LDG.E.U16 R3, desc[UR4][R2.64]",
    "global_loads_32": "LDG.E R3, desc[UR4][R2.64]",
    "global_loads_64": "@P1 LDG.E.64.CONSTANT R4, desc[UR6][R6.64+0x8]",
    "global_loads_128": "LDGSTS.E.BYPASS.128 [R8], desc[UR4][R2.64]",
    "global_loads_256": "LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64]",
    "global_stores_8": "STG.E.S8 desc[UR4][R24.64+0x200], R5",
    "global_stores_32": "STG.E.STRONG.SYS desc[UR4][R24.64], R5",
    "global_stores_128": "@!UP0 STG.E.128 desc[UR4][R28.64], R4",
    "local_loads": "LDL.64 R4, [R1+0x10]",
    "local_stores": "STL [R1], R4",
    "shared_instructions": "LDSM.16.M88.4 R4, [R10+UR5]",
    "barriers": "BAR.SYNC.DEFER_BLOCKING 0x0",
    "conversions": "HADD2.F32 R5, -RZ, R5.H0_H0",
    "float_instructions": "UFFMA UR5, UR4, UR4, UR6",
    "integer_instructions": "@P0 LOP3.LUT R0, R2, 0x1, RZ, 0xfc, !PT",
    "other_instructions": "IMAD.MOV.U32 R34, RZ, RZ, -0x1",
}


def listing(*instructions):
    """Text as nvdisasm prints it."""
    lines = [f"        /*{16 * n:04x}*/  {' ' * 14} {text} ;" for n, text in enumerate(instructions)]
    head = "\t.target\tsm_90\n\n.text.kernel:\n.L_x_0:  // LDG in a comment\n"
    return head + "\n".join(lines) + "\n"


@pytest.mark.parametrize(("field", "instruction"), COUNTS.items())
def test_an_instruction_counts_in_its_class_only(field, instruction):
    mix = dataclasses.asdict(instruction_mix(listing(instruction, "NOP")))
    counts = {name: value for name, value in mix.items() if isinstance(value, int) and not isinstance(value, bool)}
    assert {name: count for name, count in counts.items() if count} == {field: 1, "instructions": 1}


def test_the_classes_add_up_and_bytes_are_a_mean_over_loads_and_stores():
    mix = instruction_mix(listing(*COUNTS.values(), "FADD R1, R2, R3", "NOP", "EXIT"))
    counts = dataclasses.asdict(mix)
    total = counts.pop("instructions")
    assert total == len(COUNTS) + 2
    assert total == sum(count for count in counts.values() if isinstance(count, int) and count is not True)
    assert mix.bytes_per_global_instruction == (1 + 2 + 4 + 8 + 16 + 32 + 1 + 4 + 16) / 9
    assert instruction_mix(listing("EXIT")).bytes_per_global_instruction is None


@pytest.mark.parametrize(
    ("instruction", "fp8", "fp4"),
    [
        ("F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R5, R6, R7, RZ", True, False),
        ("F2FP.F16.E4M3.UNPACK_B R5, R6", True, False),
        ("F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C R5, R6, R7, RZ", False, True),
        ("F2FP.BF16.F32.PACK_AB R5, R6, R7", False, False),
    ],
)
def test_native_conversions_are_seen(instruction, fp8, fp4):
    mix = instruction_mix(listing(instruction))
    assert (mix.native_fp8, mix.native_fp4, mix.conversions) == (fp8, fp4, 1)


def test_widths_are_bits():
    assert [width_of(name) for name in ("LDG.E", "STG.E.U8", "LDG.E.S16", "STL.64", "LDL.LU.128")] == [
        32,
        8,
        16,
        64,
        128,
    ]


def test_text_without_code_is_refused():
    with pytest.raises(ValueError, match="holds no SASS instruction"):
        instruction_mix("\t.target\tsm_90\n")
