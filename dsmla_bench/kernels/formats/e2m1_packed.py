"""e2m1 codes of bf16 values, eight at a time and two in a register, in inline assembly: for compiled kernels alone.

``e2m1`` has the same conversions in plain arithmetic, which take twice as many instructions. A *chunk* is eight
neighbours: four registers of two bf16 values, the even one in the low half, or one register of eight codes.

Why half precision is enough. A bf16 value x has eight significant bits, and the product of an e4m3 scale and a midpoint
of e2m1 seven: the two are equal, or differ by 2^-8 of themselves. So x / scale rounded to a half's eleven bits, and to
2^-10 below 1, falls on the side of a midpoint that the exact quotient is on, and on the midpoint where that does. What
the format defines is the product with the fp32 reciprocal, which is a step above the midpoint where the quotient is on
it and the scale's significand is 1.75 or 1.875, or for some midpoints 1.625. Those midpoints go up in any case, but for
1.25, 2.5 and 5 under 1.875: there ``packed_inverse`` is larger by 2^-10, which carries a half past these three and past
no other. tests/test_e2m1_packed.py runs the instructions below on every bf16 value under every scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

PACK = tl.constexpr("""{
    .reg .b32 e0, e1, o0, o1, t0, t1, t2, t3;
    .reg .f32 f0, f1, f2, f3, f4, f5, f6, f7;
    shl.b32 t0, $1, 16;
    and.b32 t1, $1, 0xFFFF0000;
    shl.b32 t2, $2, 16;
    and.b32 t3, $2, 0xFFFF0000;
    mov.b32 f0, t0;
    mov.b32 f1, t1;
    mov.b32 f2, t2;
    mov.b32 f3, t3;
    shl.b32 t0, $3, 16;
    and.b32 t1, $3, 0xFFFF0000;
    shl.b32 t2, $4, 16;
    and.b32 t3, $4, 0xFFFF0000;
    mov.b32 f4, t0;
    mov.b32 f5, t1;
    mov.b32 f6, t2;
    mov.b32 f7, t3;
    mul.f32 f0, f0, $5;
    mul.f32 f1, f1, $5;
    mul.f32 f2, f2, $5;
    mul.f32 f3, f3, $5;
    mul.f32 f4, f4, $5;
    mul.f32 f5, f5, $5;
    mul.f32 f6, f6, $5;
    mul.f32 f7, f7, $5;
    cvt.rn.f16x2.f32 e0, f2, f0;
    cvt.rn.f16x2.f32 e1, f6, f4;
    cvt.rn.f16x2.f32 o0, f3, f1;
    cvt.rn.f16x2.f32 o1, f7, f5;
    mov.b32 t0, 0x0E000E00;
    min.xorsign.abs.f16x2 e0, e0, t0;
    min.xorsign.abs.f16x2 e1, e1, t0;
    min.xorsign.abs.f16x2 o0, o0, t0;
    min.xorsign.abs.f16x2 o1, o1, t0;
    shr.u32 t0, e0, 9;
    shr.u32 t1, e1, 9;
    shr.u32 t2, o0, 9;
    shr.u32 t3, o1, 9;
    and.b32 t0, t0, 0x00010001;
    and.b32 t1, t1, 0x00010001;
    and.b32 t2, t2, 0x00010001;
    and.b32 t3, t3, 0x00010001;
    add.u32 t0, t0, 0x00FF00FF;
    add.u32 t1, t1, 0x00FF00FF;
    add.u32 t2, t2, 0x00FF00FF;
    add.u32 t3, t3, 0x00FF00FF;
    add.u32 e0, e0, t0;
    add.u32 e1, e1, t1;
    add.u32 o0, o0, t2;
    add.u32 o1, o1, t3;
    prmt.b32 e0, e0, e1, 0x7531;
    prmt.b32 o0, o0, o1, 0x7531;
    shr.u32 t0, e0, 1;
    shr.u32 t1, e0, 4;
    shl.b32 t2, o0, 3;
    lop3.b32 t0, t0, t1, 0x07070707, 0xE4;
    lop3.b32 t2, t2, o0, 0x70707070, 0xE4;
    lop3.b32 $0, t0, t2, 0x0F0F0F0F, 0xE4;
}""")
"""Four pairs of bf16, and 2^-14 over the scale → eight codes.

Scaled by 2^-14, e2m1's subnormal numbers are a half's, and so are its normal ones: bits 9 to 11 of a half are the code,
once it is kept below 6 (0x0E00) and rounded to them, half to even. Even and odd values go into halves of their own, so
that bytes can be put together from their codes; 0xE4 takes the first operand's bits where the mask is set, the second's
elsewhere.
"""

UNPACK = tl.constexpr("""{
    .reg .b32 codes, rest, low, high, sign, first, second;
    and.b32 codes, $4, 0x77777777;
    prmt.b32 low, 0xC0800000, 0xC0804000, codes;
    prmt.b32 high, 0x3F3F3F00, 0x40404040, codes;
    prmt.b32 sign, 0x80808080, 0x80808080, $4;
    shl.b32 sign, sign, 1;
    lop3.b32 high, high, sign, 0x80808080, 0xF8;
    prmt.b32 first, low, high, 0x5140;
    prmt.b32 second, low, high, 0x7362;
    mul.bf16x2 $0, first, $5;
    mul.bf16x2 $1, second, $5;
    shr.u32 codes, codes, 16;
    shr.u32 rest, $4, 16;
    prmt.b32 low, 0xC0800000, 0xC0804000, codes;
    prmt.b32 high, 0x3F3F3F00, 0x40404040, codes;
    prmt.b32 sign, 0x80808080, 0x80808080, rest;
    shl.b32 sign, sign, 1;
    lop3.b32 high, high, sign, 0x80808080, 0xF8;
    prmt.b32 first, low, high, 0x5140;
    prmt.b32 second, low, high, 0x7362;
    mul.bf16x2 $2, first, $5;
    mul.bf16x2 $3, second, $5;
}""")
"""Eight codes, and the scale as two bf16 → four pairs of bf16.

A byte permutation by the codes looks the magnitudes' low and high bytes up, four at once. Its selectors' top bit, here
the sign, asks for copies of the chosen byte's own top bit: of 0x80 that is 0xFF, and 0x80 itself without it; shifted by
one, that is the sign where a bf16 has it. 0xF8 ors the masked second operand to the first.
"""


@triton.jit
def chunks_of(values):
    """bf16 [T, 8 n] → the chunks' registers, int32 [T, n] each, in order. A value that was loaded is not moved."""
    low, high = tl.split(tl.reshape(values, (values.shape[0], values.shape[1] // 2, 2)))
    pairs = tl.inline_asm_elementwise(
        "mov.b32 $0, {$1, $2};", "=r,h,h", [low, high], dtype=tl.int32, is_pure=True, pack=1
    )
    even, odd = tl.split(tl.reshape(pairs, (values.shape[0], values.shape[1] // 8, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _larger(a, b):
    """Pairs of bf16 → the larger magnitudes, under signs of no meaning. A NaN does not count."""
    return tl.inline_asm_elementwise(
        "max.xorsign.abs.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def chunk_amax(first, second, third, fourth):
    """The chunks' registers → their largest magnitudes, fp32 [T, n]; NaN where there is nothing else."""
    pairs = _larger(_larger(first, second), _larger(third, fourth))
    low = (pairs << 16).to(tl.float32, bitcast=True)
    high = (pairs & -65536).to(tl.float32, bitcast=True)
    return tl.maximum(tl.abs(low), tl.abs(high))


@triton.jit
def packed_inverse(scales):
    """Positive e4m3 values in fp32 → what ``pack_chunks`` multiplies by; see the module docstring."""
    inverse = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [scales], dtype=tl.float32, is_pure=True, pack=1
    )
    goes_up = (scales.to(tl.int32, bitcast=True) & 0x700000) == 0x700000
    return inverse * tl.where(goes_up, 6.1094760894775390625e-05, 6.103515625e-05)  # 2^-14, and 2^-24 more


@triton.jit
def pack_chunks(first, second, third, fourth, inverse):
    """The chunks' registers and ``packed_inverse`` of their scales [T, n] → their codes, int32 [T, n]."""
    return tl.inline_asm_elementwise(
        PACK, "=r,r,r,r,r,f", [first, second, third, fourth, inverse], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def unpack_chunks(codes, scales):
    """Codes int32 [T, n] and their scales, fp32 [T, n] that are e4m3 → value · scale, bf16 [T, 8 n], exact."""
    twice = tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $1, $1;", "=r,f", [scales], dtype=tl.int32, is_pure=True, pack=1
    )
    first, second, third, fourth = tl.inline_asm_elementwise(
        UNPACK,
        "=r,=r,=r,=r,r,r",
        [codes, twice],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    pairs = tl.join(tl.join(first, third), tl.join(second, fourth))
    low, high = tl.inline_asm_elementwise(
        "mov.b32 {$0, $1}, $2;",
        "=h,=h,r",
        [tl.reshape(pairs, (codes.shape[0], 4 * codes.shape[1]))],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=1,
    )
    return tl.reshape(tl.join(low, high), (codes.shape[0], 8 * codes.shape[1]))


@triton.jit
def one_by_one(row_ptr):
    """Pointers to bytes → to int32, of whose alignment the compiler knows nothing: a lane then moves one at a time.

    As many chunks as a lane could move at once would be more than its neighbours in the bf16 block that they come from.
    """
    address = tl.inline_asm_elementwise(
        "mov.b64 $0, $1;", "=l,l", [row_ptr.to(tl.int64)], dtype=tl.int64, is_pure=True, pack=1
    )
    return address.to(tl.pointer_type(tl.int32))
