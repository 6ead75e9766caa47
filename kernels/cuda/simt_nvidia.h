// The words of simt.h for nvcc.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/check_cuda.h"

#define SIMT_DEVICE __device__ __forceinline__
#define SIMT_SHARED(T, name, count) __shared__ T name[count]

namespace tessera::simt {

SIMT_DEVICE int thread() {
    return static_cast<int>(threadIdx.x);
}
SIMT_DEVICE int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
}
SIMT_DEVICE int warp() {
    return static_cast<int>(threadIdx.x) / kWarp;
}
SIMT_DEVICE std::int64_t block_x() {
    return blockIdx.x;
}
SIMT_DEVICE std::int64_t block_y() {
    return blockIdx.y;
}
SIMT_DEVICE std::int64_t block_z() {
    return blockIdx.z;
}
SIMT_DEVICE std::int64_t grid_x() {
    return gridDim.x;
}
SIMT_DEVICE std::int64_t grid_y() {
    return gridDim.y;
}
SIMT_DEVICE std::int64_t grid_z() {
    return gridDim.z;
}

SIMT_DEVICE void sync_block() {
    __syncthreads();
}
template <int id>
SIMT_DEVICE void sync_named(int threads) {
    static_assert(id >= 1 && id <= 15);
    asm volatile("barrier.sync %0, %1;" ::"n"(id), "r"(threads) : "memory");
}
SIMT_DEVICE void sync_warp(unsigned mask = kAll) {
    __syncwarp(mask);
}
template <typename T>
SIMT_DEVICE T shuffle(T value, int from, unsigned mask = kAll) {
    return __shfl_sync(mask, value, from);
}
template <typename T>
SIMT_DEVICE T shuffle_xor(T value, int bits, unsigned mask = kAll) {
    return __shfl_xor_sync(mask, value, bits);
}
template <typename T>
SIMT_DEVICE T shuffle_down(T value, int lanes, unsigned mask = kAll) {
    return __shfl_down_sync(mask, value, static_cast<unsigned>(lanes));
}
SIMT_DEVICE bool any(bool predicate, unsigned mask = kAll) {
    return __any_sync(mask, predicate) != 0;
}
SIMT_DEVICE bool all(bool predicate, unsigned mask = kAll) {
    return __all_sync(mask, predicate) != 0;
}
SIMT_DEVICE unsigned ballot(bool predicate, unsigned mask = kAll) {
    return __ballot_sync(mask, predicate);
}

SIMT_DEVICE std::byte* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char simt_dynamic_shared[];
    return reinterpret_cast<std::byte*>(simt_dynamic_shared);
}
SIMT_DEVICE unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
SIMT_DEVICE void copy_async16(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}
SIMT_DEVICE void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
SIMT_DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

SIMT_DEVICE void load_matrix_x4(std::uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
SIMT_DEVICE void load_matrix_x4_transposed(std::uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
template <typename H>
SIMT_DEVICE void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
SIMT_DEVICE void mma_16x8x16<bfloat16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
SIMT_DEVICE void mma_16x8x16<float16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// What the compiler loads by one access; it may take a struct of ours apart.
template <int bytes>
using Word = std::conditional_t<bytes == 4, unsigned, std::conditional_t<bytes == 8, uint2, uint4>>;

template <int N, typename T>
SIMT_DEVICE Vector<T, N> load_vector(const T* from) {
    static_assert(sizeof(T) * N == 4 || sizeof(T) * N == 8 || sizeof(T) * N == 16);
    return __builtin_bit_cast(Vector<T, N>, *reinterpret_cast<const Word<sizeof(T) * N>*>(from));
}
template <typename T, int N>
SIMT_DEVICE void store_vector(T* to, const Vector<T, N>& value) {
    static_assert(sizeof(T) * N == 4 || sizeof(T) * N == 8 || sizeof(T) * N == 16);
    // The compiler takes some stores of a whole word apart, and the hardware does not put them together again.
    const auto word = __builtin_bit_cast(Word<sizeof(T) * N>, value);
    if constexpr (sizeof(word) == 16) {
        asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
                     : "memory");
    } else if constexpr (sizeof(word) == 8) {
        asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word.x), "r"(word.y) : "memory");
    } else {
        *reinterpret_cast<Word<4>*>(to) = word;
    }
}

SIMT_DEVICE float to_float(float x) {
    return x;
}
SIMT_DEVICE float to_float(bfloat16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
SIMT_DEVICE float to_float(float16 x) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
}
template <typename T>
SIMT_DEVICE T from_float(float x);
template <>
SIMT_DEVICE float from_float<float>(float x) {
    return x;
}
template <>
SIMT_DEVICE bfloat16 from_float<bfloat16>(float x) {
    bfloat16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}
template <>
SIMT_DEVICE float16 from_float<float16>(float x) {
    float16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
}
template <typename H>
SIMT_DEVICE std::uint32_t pack2(float low, float high);
template <>
SIMT_DEVICE std::uint32_t pack2<bfloat16>(float low, float high) {
    std::uint32_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}
template <>
SIMT_DEVICE std::uint32_t pack2<float16>(float low, float high) {
    std::uint32_t result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

SIMT_DEVICE float exp(float x) {
    return expf(x);
}
SIMT_DEVICE float exp2(float x) {
    return exp2f(x);
}
SIMT_DEVICE float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
SIMT_DEVICE float log(float x) {
    return logf(x);
}
SIMT_DEVICE float sqrt(float x) {
    return sqrtf(x);
}
SIMT_DEVICE float rsqrt(float x) {
    return rsqrtf(x);
}
SIMT_DEVICE float fma(float a, float b, float c) {
    return fmaf(a, b, c);
}
SIMT_DEVICE std::uint32_t bits_of(float x) {
    return __float_as_uint(x);
}
SIMT_DEVICE float float_of(std::uint32_t bits) {
    return __uint_as_float(bits);
}
template <typename T>
SIMT_DEVICE T max(T a, T b) {
    return a < b ? b : a;
}
template <typename T>
SIMT_DEVICE T min(T a, T b) {
    return b < a ? b : a;
}
SIMT_DEVICE float max(float a, float b) {
    return fmaxf(a, b);
}
SIMT_DEVICE float min(float a, float b) {
    return fminf(a, b);
}

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks) run(const __grid_constant__ Kernel kernel) {
    kernel();
}

template <typename Kernel>
void launch(Stream stream, Grid grid, const Kernel& kernel, std::int64_t dynamic_shared_bytes = 0) {
    // Beyond 48 KiB, shared arrays of the kernel counted, a block must have asked.
    if (dynamic_shared_bytes > 0) {
        check_cuda(cudaFuncSetAttribute(run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(dynamic_shared_bytes)),
                   "cudaFuncSetAttribute");
    }
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
    run<Kernel><<<blocks, Kernel::kThreads, static_cast<std::size_t>(dynamic_shared_bytes), stream>>>(kernel);
    check_cuda(cudaGetLastError(), "the launch of a kernel");
}

}  // namespace tessera::simt
