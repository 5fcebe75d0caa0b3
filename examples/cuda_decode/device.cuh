// What the kernels here say to the hardware of sm_90: barriers in shared memory, copies to it, small matrix products.
#pragma once

#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Wait until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra again;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// Copy 16 bytes to shared memory while this thread goes on; with ``there`` false nothing is read and zeros are written.
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

// Arrive for this thread once all that it copies is there.
__device__ __forceinline__ void barrier_arrive_after_copies(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void sync_threads(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// c += a b, with a [16, 16] and b [16, 8] in fp16 or bf16 and c [16, 8] in fp32, in the layout of mma.m16n8k16.
__device__ __forceinline__ void multiply_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The two e4m3 values in the low or high half of a word, in fp16.
__device__ __forceinline__ uint32_t fp16_of_low_e4m3(uint32_t word) {
    uint32_t values;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}" : "=r"(values) : "r"(word));
    return values;
}

__device__ __forceinline__ uint32_t fp16_of_high_e4m3(uint32_t word) {
    uint32_t values;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}" : "=r"(values) : "r"(word));
    return values;
}

__device__ __forceinline__ uint32_t fp16_product(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

__device__ __forceinline__ uint32_t fp16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float exp2_approximately(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approximately(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The larger or the sum of a value in the four lanes of a group that mma calls a quad.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
