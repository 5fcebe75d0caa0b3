// How a warp reads rows of a format out of shared memory, as operands of mma.m16n8k16. The row formats' files have the
// byte layouts; attend.cuh says what a warp's share is: 128 columns of NoPE and 16 of RoPE.
//
// A lane is g = lane / 4, t = lane % 4. Keys are the operand [k, n] with n a row of the cache: lane (g, t) gives row g
// of eight, and of its columns those from 32 t on. Values are the operand with k a row and n a column: lane (g, t) gives
// the columns from 16 g on of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. Which column is which k or n is free as long as
// both operands of a product agree, so every lane reads whole words that lie side by side.
#pragma once

#include "device.cuh"

constexpr int RANK = 512, WARP_COLUMNS = 128, WARP_ROPE = 16;

// A power of two and its inverse that bring ``largest`` to 2^13 .. 2^14, as fp16 holds it with room for what is smaller.
__device__ __forceinline__ float2 scale_to_fp16(float largest) {
    int exponent = largest > 0.0f ? max((__float_as_int(largest) >> 23) - 127 - 13, -126) : 0;
    return make_float2(__int_as_float((127 - exponent) << 23), __int_as_float((127 + exponent) << 23));
}

__device__ __forceinline__ float largest_bf16(uint32_t pair) { return fmaxf(fabsf(bf16_low(pair)), fabsf(bf16_high(pair))); }

__device__ __forceinline__ uint32_t scaled_fp16(uint32_t bf16s, float factor) {
    return fp16_pair(bf16_low(bf16s) * factor, bf16_high(bf16s) * factor);
}

// A lane's 32 columns of NoPE and four of RoPE of one head of the query, in bf16; zeros for a head that is not there.
struct QueryRow {
    uint4 nope[4] = {};
    uint2 rope = make_uint2(0, 0);

    __device__ __forceinline__ QueryRow(const uint16_t* nope_row, const uint16_t* rope_row, int t, bool there) {
        if (!there) return;
        for (int i = 0; i < 4; i++) nope[i] = __ldg(reinterpret_cast<const uint4*>(nope_row + 32 * t) + i);
        rope = __ldg(reinterpret_cast<const uint2*>(rope_row + 4 * t));
    }

    __device__ __forceinline__ const uint32_t* pairs() const { return reinterpret_cast<const uint32_t*>(nope); }

    // The largest magnitude of NoPE, and of what is given.
    __device__ __forceinline__ float largest(float found) const {
        for (int i = 0; i < 16; i++) found = fmaxf(found, largest_bf16(pairs()[i]));
        return found;
    }
};

// A warp's share of 16 heads of the query as operands, and what undoes the scaling of heads g and g + 8.
struct Query {
    uint32_t nope[8][4], rope[4];
    float factor[2];
};

// fp8_ds_mla: e4m3 is exact in fp16, and a tile of 128 is a warp's share, so that its scale is left for the products.
struct Fp8DsMla {
    static constexpr int ROW_BYTES = 656, STRIDE = 656;
    static constexpr bool SCALED = true;

    // Head g (``which`` 0) or g + 8 (1) of the query, as keys are multiplied with it.
    static __device__ __forceinline__ void keep(Query& q, int which, const QueryRow& row) {
        const uint32_t* pairs = row.pairs();
        const float2 scale = scale_to_fp16(quad_max(row.largest(0.0f)));
        for (int step = 0; step < 8; step++) {
            q.nope[step][which] = scaled_fp16(pairs[2 * step], scale.x);
            q.nope[step][which + 2] = scaled_fp16(pairs[2 * step + 1], scale.x);
        }
        q.rope[which] = row.rope.x;
        q.rope[which + 2] = row.rope.y;
        q.factor[which] = scale.y;
    }

    static __device__ __forceinline__ float scale(const uint8_t* row, int warp) {
        return *reinterpret_cast<const float*>(row + RANK + 4 * warp);
    }

    // scores += of 16 heads and the N times eight rows from ``base`` on, whose scales are given.
    template <int N>
    static __device__ __forceinline__ void keys(float (*scores)[4], const float (*scales)[2], const Query& q, const uint8_t* base,
                                                int warp, int g, int t) {
        uint4 words[N][2];
        uint2 k_pe[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint8_t* row = base + (8 * j + g) * STRIDE;
            for (int i = 0; i < 2; i++)
                words[j][i] = *reinterpret_cast<const uint4*>(row + WARP_COLUMNS * warp + 32 * t + 16 * i);
            k_pe[j] = *reinterpret_cast<const uint2*>(row + RANK + 16 + 2 * WARP_ROPE * warp + 8 * t);
        }
#pragma unroll
        for (int step = 0; step < 8; step++)
#pragma unroll
            for (int j = 0; j < N; j++) {
                uint32_t word = reinterpret_cast<const uint32_t*>(words[j])[step];
                multiply_fp16(scores[j], q.nope[step], fp16_of_low_e4m3(word), fp16_of_high_e4m3(word));
            }
#pragma unroll
        for (int j = 0; j < N; j++) {
            for (int c = 0; c < 4; c++) scores[j][c] *= scales[j][c % 2] * q.factor[c / 2];
            multiply_bf16(scores[j], q.rope, k_pe[j].x, k_pe[j].y);
        }
    }

    // out += weights of 16 heads times the 16 rows from ``base`` on.
    static __device__ __forceinline__ void values(float (&out)[16][4], const uint32_t (&weights)[4], const uint8_t* base, int warp,
                                                  int g, int t) {
        uint4 rows[4];
        for (int r = 0; r < 4; r++)
            rows[r] = *reinterpret_cast<const uint4*>(base + (2 * t + (r & 1) + 8 * (r >> 1)) * STRIDE + WARP_COLUMNS * warp + 16 * g);
        const uint32_t *a = reinterpret_cast<const uint32_t*>(&rows[0]), *b = reinterpret_cast<const uint32_t*>(&rows[1]);
        const uint32_t *c = reinterpret_cast<const uint32_t*>(&rows[2]), *d = reinterpret_cast<const uint32_t*>(&rows[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t ab = __byte_perm(a[i], b[i], 0x5140), cd = __byte_perm(c[i], d[i], 0x5140);
            multiply_fp16(out[4 * i], weights, fp16_of_low_e4m3(ab), fp16_of_low_e4m3(cd));
            multiply_fp16(out[4 * i + 1], weights, fp16_of_high_e4m3(ab), fp16_of_high_e4m3(cd));
            ab = __byte_perm(a[i], b[i], 0x7362), cd = __byte_perm(c[i], d[i], 0x7362);
            multiply_fp16(out[4 * i + 2], weights, fp16_of_low_e4m3(ab), fp16_of_low_e4m3(cd));
            multiply_fp16(out[4 * i + 3], weights, fp16_of_high_e4m3(ab), fp16_of_high_e4m3(cd));
        }
    }
};

// nvfp4_ds_mla: an e2m1 code is, with its bits spread, an e4m3 one of 2^-6 times its value. In fp16 its product with the
// tile's scale times 2^6 is exact.
struct Nvfp4DsMla {
    static constexpr int ROW_BYTES = 352, STRIDE = 368;
    static constexpr bool SCALED = false;
    static constexpr uint32_t UP = 0x54005400;  // 2^6 in fp16, twice

    // Head g (``which`` 0) or g + 8 (1) of the query, as keys are multiplied with it.
    static __device__ __forceinline__ void keep(Query& q, int which, const QueryRow& row) {
        const float rope = fmaxf(largest_bf16(row.rope.x), largest_bf16(row.rope.y));
        const float2 scale = scale_to_fp16(quad_max(row.largest(rope)));
        // A word has eight columns: the even ones make a product, and the odd ones another.
        for (int word = 0; word < 4; word++)
            for (int odd = 0; odd < 2; odd++)
                for (int half = 0; half < 2; half++) {
                    const uint32_t* some = row.pairs() + 4 * word + 2 * half;
                    uint32_t pair = __byte_perm(some[0], some[1], odd ? 0x7632 : 0x5410);
                    q.nope[2 * word + odd][which + 2 * half] = scaled_fp16(pair, scale.x);
                }
        q.rope[which] = scaled_fp16(row.rope.x, scale.x);
        q.rope[which + 2] = scaled_fp16(row.rope.y, scale.x);
        q.factor[which] = scale.y;
    }

    static __device__ __forceinline__ float scale(const uint8_t*, int) { return 1.0f; }

    // The even and the odd codes of a word, as four e4m3 of 2^-6 times their values.
    static __device__ __forceinline__ uint32_t even_codes(uint32_t word) {
        return (word << 2 & 0x1c1c1c1cu) | (word << 4 & 0x80808080u);
    }
    static __device__ __forceinline__ uint32_t odd_codes(uint32_t word) {
        return (word >> 2 & 0x1c1c1c1cu) | (word & 0x80808080u);
    }

    // Two e4m3 scales, a byte each, in fp16 and times 2^6.
    static __device__ __forceinline__ uint32_t scale_pair(uint32_t low, uint32_t high) {
        return fp16_product(fp16_of_low_e4m3(low | high << 8), UP);
    }

    template <int N>
    static __device__ __forceinline__ void keys(float (*scores)[4], const float (*)[2], const Query& q, const uint8_t* base,
                                                int warp, int g, int t) {
        uint4 words[N];
        uint32_t k_pe[N], scales[N];
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint8_t* row = base + (8 * j + g) * STRIDE;
            words[j] = *reinterpret_cast<const uint4*>(row + WARP_COLUMNS / 2 * warp + 16 * t);
            k_pe[j] = *reinterpret_cast<const uint32_t*>(row + 256 + WARP_ROPE * warp + 4 * t);
            const uint8_t* scale = row + 320 + 8 * (2 * t & 3) + 2 * warp + (t >> 1);
            scales[j] = scale_pair(scale[0], scale[8]);
        }
#pragma unroll
        for (int word = 0; word < 4; word++)
#pragma unroll
            for (int j = 0; j < N; j++) {
                uint32_t x = reinterpret_cast<const uint32_t*>(&words[j])[word];
                uint32_t scale = __byte_perm(scales[j], 0, word < 2 ? 0x1010 : 0x3232);
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    uint32_t codes = odd ? odd_codes(x) : even_codes(x);
                    multiply_fp16(scores[j], q.nope[2 * word + odd], fp16_product(fp16_of_low_e4m3(codes), scale),
                                  fp16_product(fp16_of_high_e4m3(codes), scale));
                }
            }
#pragma unroll
        for (int j = 0; j < N; j++) {
            multiply_fp16(scores[j], q.rope, fp16_of_low_e4m3(k_pe[j]), fp16_of_high_e4m3(k_pe[j]));
            for (int c = 0; c < 4; c++) scores[j][c] *= q.factor[c / 2];
        }
    }

    static __device__ __forceinline__ void values(float (&out)[16][4], const uint32_t (&weights)[4], const uint8_t* base, int warp,
                                                  int g, int t) {
        uint2 rows[4];
        uint32_t scales[4];
        for (int r = 0; r < 4; r++) {
            const uint8_t* row = base + (2 * t + (r & 1) + 8 * (r >> 1)) * STRIDE;
            rows[r] = *reinterpret_cast<const uint2*>(row + WARP_COLUMNS / 2 * warp + 8 * g);
            scales[r] = row[320 + 8 * (g & 3) + 2 * warp + (g >> 2)];
        }
        uint32_t scale_ab = scale_pair(scales[0], scales[1]), scale_cd = scale_pair(scales[2], scales[3]);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                uint32_t codes[4];
                for (int r = 0; r < 4; r++) {
                    uint32_t word = half ? rows[r].y : rows[r].x;
                    codes[r] = odd ? odd_codes(word) : even_codes(word);
                }
#pragma unroll
                for (int back = 0; back < 2; back++) {
                    const uint32_t order = back ? 0x7362 : 0x5140;
                    uint32_t ab = __byte_perm(codes[0], codes[1], order), cd = __byte_perm(codes[2], codes[3], order);
                    const int u = 8 * half + odd + 4 * back;
                    multiply_fp16(out[u], weights, fp16_product(fp16_of_low_e4m3(ab), scale_ab),
                                  fp16_product(fp16_of_low_e4m3(cd), scale_cd));
                    multiply_fp16(out[u + 2], weights, fp16_product(fp16_of_high_e4m3(ab), scale_ab),
                                  fp16_product(fp16_of_high_e4m3(cd), scale_cd));
                }
            }
    }
};
