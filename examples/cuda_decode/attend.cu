// Sparse MLA decode for at most 16 heads on sm_90. A program takes rows of one query token: four warps bring rows into
// a ring in shared memory, and groups of four warps take turns at its tiles. In a group every warp has
// 128 columns of NoPE and 16 of RoPE for all 64 rows of a tile: it multiplies them with the query, the four put the
// scores together, and each weighs its own columns with them. Sixteen heads are one small matrix instruction.
//
// A running softmax (Milakov and Gimelshein 2018) is kept by every warp for itself, in units of log2. Weights are fp16
// and at most about one with a row's scale in them, so the maximum is that of score and scale together. Groups, and
// splits of a query's rows over programs, are put together in the end.
#include <cuda_runtime.h>

#include "rows.cuh"

// What is asked of a launch; the caller has the same in the same order.
struct Arguments {
    const uint16_t* q;       // bf16 [queries, heads, 576]
    const uint8_t* cache;
    const int32_t* indices;  // [queries, topk]
    const float* sink;       // [heads] or null
    void* out;               // bf16 [queries, heads, 512], or of parts fp32 [splits, queries, heads, 512]
    float* lse;              // [queries, heads], natural; of parts [splits, queries, heads], log2
    float softmax_scale;     // times log2(e)
    int heads, topk, split_rows, splits, queries;
    uint32_t capacity, block_size;
    int64_t q_stride, q_head_stride, indices_stride, page_stride, row_stride;
};

namespace {

// Rows of a tile, groups of consumers and bytes of the ring, as measured best.
constexpr int ROWS = 64, GROUPS = 2, RING = 170000;
constexpr int WARPS = 4, BLOCKS = ROWS / 8, PER_PRODUCER = ROWS / 4;
constexpr int CONSUMERS = GROUPS * WARPS * 32, PRODUCERS = 128, THREADS = CONSUMERS + PRODUCERS;
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;
static_assert(GROUPS == 2, "the register counts fill the 65536 of a multiprocessor for two groups");
using Bits = uint16_t;
static_assert(PER_PRODUCER == 16, "a producer's bits are of 16 rows");
constexpr float NEGATIVE_INFINITY = -__builtin_huge_valf();
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

template <typename Format>
struct Shared {
    static constexpr int TILE_BYTES = ROWS * Format::STRIDE, STAGES = RING / TILE_BYTES;
    alignas(128) uint8_t ring[STAGES][TILE_BYTES];
    alignas(16) float4 parts[GROUPS][WARPS][BLOCKS][32];  // every warp's scores of 16 heads and 64 rows, lane by lane
    uint2 there[STAGES];                            // a bit for every row that is read at all
    uint64_t full[STAGES], empty[STAGES], read[GROUPS];
};

// Bring the rows of a query's indices begin .. end into the ring, tile by tile: each of four warps 16 rows of a tile.
template <typename Format>
__device__ void produce(Shared<Format>& shared, const Arguments& a, int warp, int lane, int64_t query, int begin, int end) {
    const int32_t* indices = a.indices + query * a.indices_stride;
    const int tiles = (end - begin + ROWS - 1) / ROWS, first = PER_PRODUCER * warp;
    auto slot_of = [&](int tile) {
        const int position = begin + tile * ROWS + first + lane % PER_PRODUCER;
        return position < end ? static_cast<uint32_t>(__ldg(indices + position)) : 0xffffffffu;
    };
    uint32_t next = slot_of(0);
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % Shared<Format>::STAGES;
        const uint32_t slot = next;
        if (tile + 1 < tiles) next = slot_of(tile + 1);
        const bool there = slot < a.capacity;
        const uint32_t bits = __ballot_sync(0xffffffffu, there);
        const int64_t place = there ? slot / a.block_size * a.page_stride + slot % a.block_size * a.row_stride : 0;
        barrier_wait(&shared.empty[stage], (tile / Shared<Format>::STAGES & 1) ^ 1);
        if (lane == 0) reinterpret_cast<Bits*>(&shared.there[stage])[warp] = static_cast<Bits>(bits);
#pragma unroll 4
        for (int row = 0; row < PER_PRODUCER; row++) {
            const uint8_t* from = a.cache + __shfl_sync(0xffffffffu, place, row);
            uint8_t* to = &shared.ring[stage][(first + row) * Format::STRIDE];
#pragma unroll
            for (int chunk = 0; chunk < Format::ROW_BYTES / 16; chunk += 32)
                if (chunk + lane < Format::ROW_BYTES / 16)
                    copy_16_bytes(to + 16 * (chunk + lane), from + 16 * (chunk + lane), bits >> row & 1);
        }
        barrier_arrive_after_copies(&shared.full[stage]);
        if (lane == 0) barrier_arrive(&shared.full[stage]);
    }
    wait_for_copies();
}

// About log2 of a scale's magnitude and at least -100: exact for powers of two, linear between them.
__device__ __forceinline__ float about_log2(float scale) {
    return fmaxf(__int2float_rn(__float_as_int(fabsf(scale))) * 0x1p-23f - 127.0f, -100.0f);
}

// A warp's running softmax of heads g and g + 8, and its columns of their outputs before the division by ``total``.
struct Running {
    float out[16][4] = {};
    float highest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, total[2] = {0.0f, 0.0f};

    // What scores are exponentiated from: the highest, and anything finite where there is none.
    __device__ __forceinline__ float anchor(int h) const { return highest[h] == NEGATIVE_INFINITY ? 0.0f : highest[h]; }
};

template <typename Format>
__device__ void consume(Shared<Format>& shared, const Arguments& a, int warp, int lane, int64_t query, int split, int begin,
                        int end) {
    const int group = warp / WARPS, w = warp % WARPS, g = lane / 4, t = lane % 4;
    const int tiles = (end - begin + ROWS - 1) / ROWS;
    Query q;
    for (int h = 0; h < 2; h++) {
        const int head = g + 8 * h;
        const uint16_t* row = a.q + query * a.q_stride + head * a.q_head_stride;
        Format::keep(q, h, QueryRow(row + WARP_COLUMNS * w, row + RANK + WARP_ROPE * w, t, head < a.heads));
    }
    Running mine;

    for (int tile = group, round = 0; tile < tiles; tile += GROUPS, round++) {
        const int stage = tile % Shared<Format>::STAGES;
        barrier_wait(&shared.full[stage], tile / Shared<Format>::STAGES & 1);
        const uint8_t* base = shared.ring[stage];
        const uint2 bits = shared.there[stage];
        auto there = [&](int j, int e) { return (j < 4 ? bits.x : bits.y) >> (8 * (j % 4) + 2 * t + e) & 1; };
        float scale[BLOCKS][2], scores[BLOCKS][4] = {};
        for (int j = 0; j < BLOCKS; j++)
            for (int e = 0; e < 2; e++)
                scale[j][e] = there(j, e) ? Format::scale(base + (8 * j + 2 * t + e) * Format::STRIDE, w) : 0.0f;
#pragma unroll
        for (int j = 0; j < BLOCKS; j += 4) Format::template keys<4>(scores + j, scale + j, q, base + 8 * j * Format::STRIDE, w, g, t);

        // Put the four warps' shares of the scores together.
        if (round > 0) barrier_wait(&shared.read[group], (round - 1) & 1);
        for (int j = 0; j < BLOCKS; j++)
            shared.parts[group][w][j][lane] = make_float4(scores[j][0], scores[j][1], scores[j][2], scores[j][3]);
        sync_threads(1 + group, WARPS * 32);
        for (int other = 1; other < WARPS; other++)
            for (int j = 0; j < BLOCKS; j++) {
                const float4 part = shared.parts[group][w ^ other][j][lane];
                scores[j][0] += part.x;
                scores[j][1] += part.y;
                scores[j][2] += part.z;
                scores[j][3] += part.w;
            }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.read[group]);

        float highest[2] = {mine.highest[0], mine.highest[1]};
        for (int j = 0; j < BLOCKS; j++)
            for (int e = 0; e < 2; e++) {
                const float shift = Format::SCALED ? about_log2(scale[j][e]) : 0.0f;
                for (int h = 0; h < 2; h++) {
                    scores[j][2 * h + e] = there(j, e) ? scores[j][2 * h + e] * a.softmax_scale : NEGATIVE_INFINITY;
                    highest[h] = fmaxf(highest[h], scores[j][2 * h + e] + shift);
                }
            }
        float fade[2];
        for (int h = 0; h < 2; h++) {
            const float before = mine.highest[h];
            mine.highest[h] = quad_max(highest[h]);
            fade[h] = exp2_approximately(before - mine.anchor(h));
            mine.total[h] *= fade[h];
        }
        uint32_t weights[BLOCKS][2];
        for (int j = 0; j < BLOCKS; j++)
            for (int h = 0; h < 2; h++) {
                const float first = exp2_approximately(scores[j][2 * h] - mine.anchor(h));
                const float second = exp2_approximately(scores[j][2 * h + 1] - mine.anchor(h));
                mine.total[h] += first + second;
                weights[j][h] = Format::SCALED ? fp16_pair(first * scale[j][0], second * scale[j][1]) : fp16_pair(first, second);
            }
        if (__any_sync(0xffffffffu, fade[0] != 1.0f || fade[1] != 1.0f))
#pragma unroll
            for (int u = 0; u < 16; u++)
                for (int c = 0; c < 4; c++) mine.out[u][c] *= fade[c / 2];
#pragma unroll
        for (int step = 0; step < BLOCKS / 2; step++) {
            const uint32_t some[4] = {weights[2 * step][0], weights[2 * step][1], weights[2 * step + 1][0], weights[2 * step + 1][1]};
            Format::values(mine.out, some, base + 16 * step * Format::STRIDE, w, g, t);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.empty[stage]);
    }

    for (int h = 0; h < 2; h++) mine.total[h] = quad_sum(mine.total[h]);
    // Put the groups together, in the ring, which nobody fills any more.
    sync_threads(3 + GROUPS, CONSUMERS);
    float4* left = reinterpret_cast<float4*>(shared.ring[0]) + w * 17 * 32 + lane;
    constexpr int PER_GROUP = WARPS * 17 * 32;
    if (group > 0) {
        left += (group - 1) * PER_GROUP;
        for (int u = 0; u < 16; u++) left[u * 32] = make_float4(mine.out[u][0], mine.out[u][1], mine.out[u][2], mine.out[u][3]);
        left[16 * 32] = make_float4(mine.highest[0], mine.highest[1], mine.total[0], mine.total[1]);
    }
    sync_threads(3 + GROUPS, CONSUMERS);
    if (group > 0) return;
    for (int other = 0; other < GROUPS - 1; other++, left += PER_GROUP) {
        const float4 ends = left[16 * 32];
        const float highest[2] = {ends.x, ends.y}, totals[2] = {ends.z, ends.w};
        float ours[2], theirs[2];
        for (int h = 0; h < 2; h++) {
            const float before = mine.highest[h];
            mine.highest[h] = fmaxf(before, highest[h]);
            ours[h] = exp2_approximately(before - mine.anchor(h));
            theirs[h] = exp2_approximately(highest[h] - mine.anchor(h));
            mine.total[h] = mine.total[h] * ours[h] + totals[h] * theirs[h];
        }
        for (int u = 0; u < 16; u++) {
            const float4 out = left[u * 32];
            mine.out[u][0] = mine.out[u][0] * ours[0] + out.x * theirs[0];
            mine.out[u][1] = mine.out[u][1] * ours[0] + out.y * theirs[0];
            mine.out[u][2] = mine.out[u][2] * ours[1] + out.z * theirs[1];
            mine.out[u][3] = mine.out[u][3] * ours[1] + out.w * theirs[1];
        }
    }
    const bool whole = a.splits == 1;
    for (int h = 0; h < 2; h++) {
        const int head = g + 8 * h;
        if (head >= a.heads) continue;
        const bool none = mine.highest[h] == NEGATIVE_INFINITY;
        const float lse2 = mine.highest[h] + log2_approximately(mine.total[h]);
        float factor = none ? 0.0f : 1.0f / mine.total[h];
        if (whole && a.sink != nullptr) factor /= 1.0f + exp2_approximately(a.sink[head] * LOG2_E - lse2);
        const int64_t line = (static_cast<int64_t>(split) * a.queries + query) * a.heads + head;
        // Columns 32 t .. 32 t + 31 of the warp's: of product u the lane has columns u and 16 + u.
        const int64_t place = line * RANK + WARP_COLUMNS * w + 32 * t;
        auto value = [&](int column) { return mine.out[column % 16][2 * h + column / 16] * factor; };
        if (whole) {
            uint4* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(a.out) + place);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int c = 8 * i;
                to[i] = make_uint4(bf16_pair(value(c), value(c + 1)), bf16_pair(value(c + 2), value(c + 3)),
                                   bf16_pair(value(c + 4), value(c + 5)), bf16_pair(value(c + 6), value(c + 7)));
            }
        } else {
            float4* to = reinterpret_cast<float4*>(static_cast<float*>(a.out) + place);
#pragma unroll
            for (int i = 0; i < 8; i++)
                to[i] = make_float4(value(4 * i), value(4 * i + 1), value(4 * i + 2), value(4 * i + 3));
        }
        if (w == 0 && t == 0) a.lse[line] = !whole ? lse2 : none ? -NEGATIVE_INFINITY : lse2 * LN_2;
    }
}

template <typename Format>
__global__ void __launch_bounds__(THREADS, 1) attend(const __grid_constant__ Arguments a) {
    extern __shared__ __align__(128) uint8_t memory[];
    auto& shared = *reinterpret_cast<Shared<Format>*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = blockIdx.x % a.splits;
    const int64_t query = blockIdx.x / a.splits;
    const int begin = split * a.split_rows, end = min(begin + a.split_rows, a.topk);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < Shared<Format>::STAGES; stage++) {
            barrier_init(&shared.full[stage], PRODUCERS + PRODUCERS / 32);
            barrier_init(&shared.empty[stage], WARPS);
        }
        for (int group = 0; group < GROUPS; group++) barrier_init(&shared.read[group], WARPS);
    }
    __syncthreads();
    if (warp >= GROUPS * WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        produce(shared, a, warp - GROUPS * WARPS, lane, query, begin, end);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        consume(shared, a, warp, lane, query, split, begin, end);
    }
}

template <typename Format>
int launch(const Arguments& a, void* stream) {
    constexpr int bytes = sizeof(Shared<Format>);
    cudaError_t error = cudaFuncSetAttribute(attend<Format>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    attend<Format><<<a.splits * a.queries, THREADS, bytes, static_cast<cudaStream_t>(stream)>>>(a);
    return cudaGetLastError();
}

}  // namespace

extern "C" int dsmla_attend_fp8_ds_mla(const Arguments* a, void* stream) { return launch<Fp8DsMla>(*a, stream); }

extern "C" int dsmla_attend_nvfp4_ds_mla(const Arguments* a, void* stream) { return launch<Nvfp4DsMla>(*a, stream); }
