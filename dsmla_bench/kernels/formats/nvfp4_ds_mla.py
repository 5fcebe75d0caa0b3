"""nvfp4_ds_mla, 352 bytes a token: e2m1 latent in tiles of 16 with e4m3 scales, RoPE in e4m3.

    [0, 256)    512 e2m1 NoPE values; byte i holds value 2 i in its low nibble and 2 i + 1 in its high one
    [256, 320)  64 e4m3 RoPE values, unscaled: beyond ±448 they saturate
    [320, 352)  32 e4m3 scales: that of tile s (values 16 s .. 16 s + 15) is at 320 + 8 (s & 3) + (s >> 2)

(Layout: vLLM PR 51724 and vllm-project/FlashMLA PR 18; there is no scale outside the row.) With sf the tile's scale, a
value is stored as e2m1(x · (1 / sf)): a product with the fp32 reciprocal, which differs from a division in 14 of the
126 scales at exact ties, and is what production does. A reader gets e2m1 · sf, which bf16 holds exactly. The revisions
differ in sf:

    rn  e4m3(max(amax / 6, 2^-9)), nearest even     vLLM 0.30 and later
    up  the same, but the next code up where that rounding went down, so that no tile clips   vLLM's main, unreleased

NaN does not count in amax and is stored as +6; an infinity makes sf 448 and is stored as ±6.

On sm_100 and later the e2m1 rounding is one instruction for two values. Before, bf16 values are rounded by packed
arithmetic (``e2m1_packed``) and fp32 ones, like all in the interpreter, one by one (``e2m1.round_to_e2m1``); the codes
are the same. Reading is packed wherever kernels are compiled. Packed codes are moved four bytes at a time, and so rows
begin at multiples of four.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.e2m1 import (
    decode_e2m1,
    e2m1_conversion,
    e2m1_from_fp32,
    fp32_from_e2m1,
    pack_e2m1,
    packed_nibbles,
    unpacked_nibbles,
)
from dsmla_bench.kernels.formats.e2m1_packed import (
    chunk_amax,
    chunks_of,
    one_by_one,
    pack_chunks,
    packed_inverse,
    unpack_chunks,
)
from dsmla_bench.kernels.formats.numerics import (
    COMPILED,
    amax_of_tiles,
    bf16_from_fp32,
    decode_e4m3,
    divide,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    map_tiles,
    near_division,
    per_tile,
    tile_amax,
)

TILE = 16
SCALE_FLOOR = 2.0**-9
FIELDS = (
    Field("NoPE", "e2m1", 0, 512, order="even value in the low nibble"),
    Field("RoPE", "e4m3", 256, 64),
    Field("scales", "e4m3", 320, 32, order="tile s at 8 (s & 3) + (s >> 2)"),
)


def permute_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales [T, 32] by tile → in the order in which a row holds them: tile s goes to 8 (s & 3) + (s >> 2)."""
    return scales.reshape(-1, 8, 4).transpose(1, 2).flatten(1)


def unpermute_scales(stored: torch.Tensor) -> torch.Tensor:
    """The inverse of ``permute_scales``."""
    return stored.reshape(-1, 4, 8).transpose(1, 2).flatten(1)


def scale_codes(amax: torch.Tensor, *, round_up: bool) -> torch.Tensor:
    """fp32 amax of any shape → e4m3 scale bytes (uint8) by the rule ``rn`` or, with ``round_up``, ``up``."""
    wanted = divide(amax, 6.0).clamp(min=SCALE_FLOOR)
    codes = e4m3_from_fp32(wanted)
    if round_up:
        codes += (fp32_from_e4m3(codes) < wanted) & (codes < 0x7E)
    return codes


def quantize(
    kv_c: torch.Tensor, k_pe: torch.Tensor, scale: torch.Tensor | None = None, *, round_up: bool
) -> torch.Tensor:
    """kv_c [T, 512], k_pe [T, 64] → rows uint8 [T, 352]. ``scale`` is not used."""
    values = kv_c.float()
    scales = scale_codes(amax_of_tiles(values, TILE), round_up=round_up)
    codes = e2m1_from_fp32(map_tiles(torch.multiply, values, fp32_from_e4m3(scales).reciprocal()))
    return torch.cat([packed_nibbles(codes), e4m3_from_fp32(k_pe.float()), permute_scales(scales)], dim=-1)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 352] → kv_c bf16 [T, 512], k_pe bf16 [T, 64]; no value is rounded."""
    scales = unpermute_scales(rows[:, 320:])
    kv_c = map_tiles(torch.multiply, fp32_from_e2m1(unpacked_nibbles(rows[:, :256])), fp32_from_e4m3(scales))
    return bf16_from_fp32(kv_c), bf16_from_fp32(fp32_from_e4m3(rows[:, 256:320].contiguous()))


@triton.jit
def next_e4m3(values):
    """The e4m3 values above positive e4m3 values, in fp32 (480 above 448): 2^-9 or a third mantissa bit further.

    In floats, because ptxas 12.8 and 12.9 miscompile an addition to e4m3 codes that come straight from a conversion.
    """
    stepped = (values.to(tl.int32, bitcast=True) + (1 << 20)).to(tl.float32, bitcast=True)
    return tl.maximum(stepped, values + 0.001953125)


@triton.jit
def encode_scales(amax, OF_BF16: tl.constexpr, ROUND_UP: tl.constexpr):
    """fp32 amax [T, 32] → e4m3 scale bytes (uint8); OF_BF16 says that they are bf16 values.

    Of those, a sixth is a midpoint of e4m3, a value of it, or 2^-8 away from any: a half's eleven bits keep it there,
    and bring it back to where the rounded product with 1 / 6 has left it.
    """
    if OF_BF16:
        wanted = (amax * 0.16666667163372040).to(tl.float16).to(tl.float32)
    else:
        wanted = near_division(amax, 6.0, 0.16666667163372040)
    wanted = tl.maximum(wanted, 0.001953125)
    scales = encode_e4m3(wanted)
    if ROUND_UP:
        nearest = decode_e4m3(scales)
        scales = encode_e4m3(tl.where(nearest < wanted, next_e4m3(nearest), nearest))
    return scales


@triton.jit
def scale_offsets():
    """The offset of every tile's scale in the scale field, int32 [32]."""
    tile = tl.arange(0, 32)
    return 8 * (tile & 3) + (tile >> 2)


@triton.jit
def encode(
    kv_c,
    k_pe,
    scale,
    row_ptr,
    suffix_ptr,
    mask,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    ARCH: tl.constexpr,
    ROUND_UP: tl.constexpr,
):
    """Store a block of tokens in either revision."""
    PACKED: tl.constexpr = COMPILED and kv_c.dtype == tl.bfloat16 and ARCH < 100
    if PACKED:
        first, second, third, fourth = chunks_of(kv_c)
        amax = tl.max(tl.reshape(chunk_amax(first, second, third, fourth), (kv_c.shape[0], 32, 2)), axis=2)
    else:
        amax = tile_amax(kv_c.to(tl.float32), 32, 16)
    scales = encode_scales(amax, kv_c.dtype == tl.bfloat16, ROUND_UP)
    sf = decode_e4m3(scales)
    if PACKED:
        packed = pack_chunks(first, second, third, fourth, per_tile(packed_inverse(sf), 2))
        tl.store(one_by_one(row_ptr)[:, None] + tl.arange(0, 64), packed, mask[:, None])
    else:
        near = 1.0 / sf  # to 2 ulp, which one step of Newton's makes the rounded inverse of each of the 126 scales
        inverse = tl.fma(tl.fma(-sf, near, 1.0), near, near)
        packed = pack_e2m1(kv_c.to(tl.float32) * per_tile(inverse, 16), ARCH >= 100)
        tl.store(row_ptr[:, None] + tl.arange(0, 256), packed, mask[:, None])
    tl.store(row_ptr[:, None] + 256 + tl.arange(0, 64), encode_e4m3(k_pe.to(tl.float32)), mask[:, None])
    tl.store(row_ptr[:, None] + 320 + scale_offsets(), scales, mask[:, None])


@triton.jit
def encode_rn(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens, revision rn; see ``formats.base``."""
    encode(kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK, ROPE_DIM, ARCH, False)


@triton.jit
def encode_up(
    kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr
):
    """Store a block of tokens, revision up; see ``formats.base``."""
    encode(kv_c, k_pe, scale, row_ptr, suffix_ptr, mask, KV_LORA_RANK, ROPE_DIM, ARCH, True)


@triton.jit
def decode(
    row_ptr,
    suffix_ptr,
    mask,
    scale,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
):
    """Load a block of tokens; see ``formats.base``."""
    scales = tl.load(row_ptr[:, None] + 320 + scale_offsets(), mask[:, None], other=0)
    rope = tl.load(row_ptr[:, None] + 256 + tl.arange(0, 64), mask[:, None], other=0)
    if COMPILED:
        chunk_ptr = row_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        codes = tl.load(chunk_ptr[:, None] + tl.arange(0, 64), mask[:, None], other=0)
        kv_c = unpack_chunks(codes, per_tile(decode_e4m3(scales), 2))
    else:
        packed = tl.load(row_ptr[:, None] + tl.arange(0, 256), mask[:, None], other=0)
        kv_c = decode_e2m1(packed, decode_e4m3(scales), 16).to(tl.bfloat16)
    return kv_c, decode_e4m3(rope).to(tl.bfloat16)


def _revision(name: str, summary: str, encode: object, *, round_up: bool) -> CacheFormat:
    return CacheFormat(
        name="nvfp4_ds_mla",
        revision=name,
        summary=summary,
        fields=lambda geometry: FIELDS,
        quantize=functools.partial(quantize, round_up=round_up),
        dequantize=dequantize,
        encode=encode,
        decode=decode,
        conversion=e2m1_conversion,
        default=not round_up,
        geometry=Geometry(512, 64),
        access_bytes=4,
    )


FORMATS = (
    _revision("rn", "e2m1 NoPE in tiles of 16 with e4m3 scales, e4m3 RoPE", encode_rn, round_up=False),
    _revision("up", "as rn, with scales rounded up so that no tile clips", encode_up, round_up=True),
)
