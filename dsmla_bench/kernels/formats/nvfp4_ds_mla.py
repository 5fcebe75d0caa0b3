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

On sm_100 and later the e2m1 rounding is one instruction for two values; elsewhere, and in the interpreter, integer
arithmetic gives the same codes (``round_to_e2m1``).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats.base import CacheFormat, Field, Geometry
from dsmla_bench.kernels.formats.numerics import (
    amax_of_tiles,
    bf16_from_fp32,
    decode_e4m3,
    divide,
    e4m3_from_fp32,
    encode_e4m3,
    fp32_from_e4m3,
    map_tiles,
    per_tile,
    tile_amax,
)

TILE = 16
SCALE_FLOOR = 2.0**-9
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
FIELDS = (
    Field("NoPE", "e2m1", 0, 512, order="even value in the low nibble"),
    Field("RoPE", "e4m3", 256, 64),
    Field("scales", "e4m3", 320, 32, order="tile s at 8 (s & 3) + (s >> 2)"),
)


@functools.cache
def _e2m1_bounds(device: torch.device) -> torch.Tensor:
    """Beyond which magnitudes the next code begins, fp32 [7]: the midpoints, a step lower where a tie goes up."""
    midpoints = torch.tensor(E2M1_MIDPOINTS)
    midpoints[1::2] = midpoints[1::2].nextafter(torch.zeros(()))
    return midpoints.to(device)


@functools.cache
def _e2m1_values(device: torch.device) -> torch.Tensor:
    """The value of every code, fp32 [16]."""
    return torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], device=device)


def e2m1_from_fp32(values: torch.Tensor) -> torch.Tensor:
    """fp32 of any shape → e2m1 codes 0..15 (uint8): nearest, ties to even code, saturating; NaN is 7.

    A magnitude's code is the number of midpoints below it. One on a midpoint takes the even code, which is the upper
    one at every second midpoint.
    """
    codes = torch.bucketize(values.abs(), _e2m1_bounds(values.device), out_int32=True).to(torch.uint8)
    codes |= values.signbit() * 8
    return codes.masked_fill_(values.isnan(), 7)


def fp32_from_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """e2m1 codes 0..15 (uint8) of any shape → fp32, exact."""
    return _e2m1_values(codes.device)[codes.int()]


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
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return torch.cat([packed, e4m3_from_fp32(k_pe.float()), permute_scales(scales)], dim=-1)


def dequantize(
    rows: torch.Tensor, geometry: Geometry = Geometry(), scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows uint8 [T, 352] → kv_c bf16 [T, 512], k_pe bf16 [T, 64]; no value is rounded."""
    packed = rows[:, :256]
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)
    scales = unpermute_scales(rows[:, 320:])
    kv_c = map_tiles(torch.multiply, fp32_from_e2m1(codes), fp32_from_e4m3(scales))
    return bf16_from_fp32(kv_c), bf16_from_fp32(fp32_from_e4m3(rows[:, 256:320].contiguous()))


@triton.jit
def round_to_e2m1(values):
    """fp32 block → e2m1 codes 0..15 (int32), for targets without the conversion instruction.

    Adding 2^22 to a magnitude below 2 rounds it to a multiple of 0.5, half to even, in the sum's low bits; 2^23 does so
    to multiples of 1 below 4, and 2^24 to multiples of 2 beyond. Those are e2m1's steps, and its codes count them.
    """
    magnitude = tl.abs(values)
    magnitude = tl.where(magnitude < 6.0, magnitude, 6.0)
    binade = tl.maximum(magnitude.to(tl.int32, bitcast=True) >> 23, 127)
    anchor = (binade + 22) << 23
    total = (magnitude + anchor.to(tl.float32, bitcast=True)).to(tl.int32, bitcast=True)
    code = total - anchor + 2 * (binade - 127)
    sign = (values.to(tl.int32, bitcast=True) >> 28) & 8
    return tl.where(values == values, code | sign, 7)


@triton.jit
def pack_e2m1(values, NATIVE: tl.constexpr):
    """fp32 [T, 512] → bytes [T, 256] (uint8), the even value in the low nibble."""
    low, high = tl.split(tl.reshape(values, (values.shape[0], values.shape[1] // 2, 2)))
    if NATIVE:
        packed = tl.inline_asm_elementwise(
            "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $1, $2; cvt.u32.u8 $0, pair; }",
            "=r,f,f",
            [high, low],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        packed = round_to_e2m1(low) | (round_to_e2m1(high) << 4)
    return packed.to(tl.uint8)


@triton.jit
def next_e4m3(values):
    """The e4m3 values above positive e4m3 values, in fp32 (480 above 448): 2^-9 or a third mantissa bit further.

    In floats, because ptxas 12.8 and 12.9 miscompile an addition to e4m3 codes that come straight from a conversion.
    """
    stepped = (values.to(tl.int32, bitcast=True) + (1 << 20)).to(tl.float32, bitcast=True)
    return tl.maximum(stepped, values + 0.001953125)


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
    mask,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    ARCH: tl.constexpr,
    ROUND_UP: tl.constexpr,
):
    """Store a block of tokens in either revision."""
    values = kv_c.to(tl.float32)
    wanted = tl.maximum(tl.div_rn(tile_amax(values, 32, 16), 6.0), 0.001953125)
    scales = encode_e4m3(wanted)
    if ROUND_UP:
        nearest = decode_e4m3(scales)
        scales = encode_e4m3(tl.where(nearest < wanted, next_e4m3(nearest), nearest))
    sf = decode_e4m3(scales)
    packed = pack_e2m1(values * per_tile(tl.div_rn(1.0, sf), 16), ARCH >= 100)
    tl.store(row_ptr[:, None] + tl.arange(0, 256), packed, mask[:, None])
    tl.store(row_ptr[:, None] + 256 + tl.arange(0, 64), encode_e4m3(k_pe.to(tl.float32)), mask[:, None])
    tl.store(row_ptr[:, None] + 320 + scale_offsets(), scales, mask[:, None])


@triton.jit
def encode_rn(kv_c, k_pe, scale, row_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr):
    """Store a block of tokens, revision rn; see ``formats.base``."""
    encode(kv_c, k_pe, scale, row_ptr, mask, KV_LORA_RANK, ROPE_DIM, ARCH, False)


@triton.jit
def encode_up(kv_c, k_pe, scale, row_ptr, mask, KV_LORA_RANK: tl.constexpr, ROPE_DIM: tl.constexpr, ARCH: tl.constexpr):
    """Store a block of tokens, revision up; see ``formats.base``."""
    encode(kv_c, k_pe, scale, row_ptr, mask, KV_LORA_RANK, ROPE_DIM, ARCH, True)


@triton.jit
def e2m1_magnitude(codes):
    """e2m1 codes 0..15 (int32) → signed fp32.

    The three low bits are an exponent and a mantissa bit; placed at the top of a half's fields they read 2^-14 too
    small, e2m1's subnormal 0.5 included.
    """
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def decode(
    row_ptr,
    mask,
    scale,
    KV_LORA_RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    NOPE_BLOCK: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
):
    """Load a block of tokens; see ``formats.base``."""
    packed = tl.load(row_ptr[:, None] + tl.arange(0, 256), mask[:, None], other=0).to(tl.int32)
    scales = tl.load(row_ptr[:, None] + 320 + scale_offsets(), mask[:, None], other=0)
    rope = tl.load(row_ptr[:, None] + 256 + tl.arange(0, 64), mask[:, None], other=0)
    values = tl.join(e2m1_magnitude(packed & 0xF), e2m1_magnitude(packed >> 4))
    kv_c = tl.reshape(values, (packed.shape[0], 512)) * per_tile(decode_e4m3(scales), 16)
    return kv_c.to(tl.bfloat16), decode_e4m3(rope).to(tl.bfloat16)


def _conversion(arch: Architecture) -> str | None:
    if not arch.has_e4m3:
        return None
    return "native" if arch.has_e2m1 else "emulated"


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
        conversion=_conversion,
        default=not round_up,
        geometry=Geometry(512, 64),
    )


FORMATS = (
    _revision("rn", "e2m1 NoPE in tiles of 16 with e4m3 scales, e4m3 RoPE", encode_rn, round_up=False),
    _revision("up", "as rn, with scales rounded up so that no tile clips", encode_up, round_up=True),
)
