// The vocabulary in which the CUDA kernels are written. A kernel is compiled twice: by nvcc for the product, where each
// word below is an intrinsic or a line of PTX (simt_nvidia.h), and by the host compiler for the emulator of the tests,
// where each word is also checked. Nothing else may differ between the two: kernels use no CUDA keyword, no intrinsic
// and no PTX of their own.
//
// A kernel is a struct: its members are the arguments, kThreads the threads of a block (one dimension, a multiple of
// 32), kMinBlocks the blocks that must fit on a multiprocessor at once (0: as it comes), and operator() the body.
//
//     template <typename S>
//     struct Scale {
//         static constexpr int kThreads = 256;
//         static constexpr int kMinBlocks = 0;
//         S* x;
//         std::int64_t count;
//         float factor;
//         SIMT_DEVICE void operator()() const {
//             const std::int64_t i = simt::block_x() * kThreads + simt::thread();
//             if (i < count) x[i] = simt::from_float<S>(factor * simt::to_float(x[i]));
//         }
//     };
//     simt::launch(stream, {.x = ceil_div(count, 256)}, Scale<S>{x, count, factor});
//
// The words, all in namespace tessera::simt:
//
//   SIMT_DEVICE                        before every function that runs in a kernel
//   SIMT_UNROLL                        before a loop to unroll: arrays that its variable indexes stay in registers
//   SIMT_LOOP                          before a loop not to unroll, so that it takes few registers
//   thread() lane() warp()             int: number in the block, in the warp, of the warp
//   block_x() block_y() block_z()      int64: place of the block in the grid
//   grid_x() grid_y() grid_z()         int64: size of the grid
//   sync_block()                       all threads of the block
//   sync_named<id>(threads)            `threads` threads (a multiple of 32, whole warps) at barrier id 1..15
//   sync_warp(mask = kAll)             the lanes of a mask; orders their accesses to memory
//   shuffle(v, lane) shuffle_xor(v, bits) shuffle_down(v, lanes)   4- or 8-byte v, with a mask as last argument (kAll)
//   any(p) all(p) ballot(p)            with a mask as last argument (kAll)
//   SIMT_SHARED(T, name, count)        a statement: T name[count] shared by the block, not initialised
//   dynamic_shared()                   std::byte*, 128-byte aligned: what launch() was told, not initialised
//   copy_async16(to, from, valid)      16 bytes from global to shared memory, both 16-byte aligned; zeros where not
//                                      valid (then `from` is not read); there after wait_copies, for others after a
//                                      barrier that follows it
//   commit_copies() wait_copies<N>()   ends a group; waits until at most N groups of this thread are under way
//   load_matrix_x4(r, row)             ldmatrix.x4: four 8x8 matrices of 16-bit elements; lane l gives the address of
//   load_matrix_x4_transposed(r, row)  row l % 8 of matrix l / 8 (16-byte aligned, in shared memory)
//   mma_16x8x16<H>(d, a, b)            d += a b: a 16x16 row-major, b 16x8, of H (bfloat16 or float16), d fp32, in the
//                                      fragment layouts of mma.sync.m16n8k16
//   Vector<T, N>, load_vector<N>(p), store_vector(p, v)   one access of sizeof(T) * N bytes (4, 8 or 16), aligned to it
//   to_float(x) from_float<T>(f)       float, bfloat16, float16; rounded to nearest even
//   pack2<H>(low, high)                two floats rounded to H in a 32-bit word
//   exp exp2 log sqrt rsqrt            floats, within 2 ulp; exp2_approx within 2^-22 relative, denormals flushed
//   fma(a, b, c)                       floats; a b + c, rounded once
//   bits_of(f) float_of(u)             float <-> its 32 bits
//   max(a, b) min(a, b)                of one type
//
// For the host: launch(stream, grid, kernel, dynamic_shared_bytes = 0). Runs in the order of its stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cuda/runtime.h"

namespace tessera::simt {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAll = 0xffffffffu;

/// Blocks in each direction; x up to 2^31 - 1, y and z up to 65,535.
struct Grid {
    std::int64_t x = 1;
    std::int64_t y = 1;
    std::int64_t z = 1;
};

/// N elements that are moved by one access.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
    T v[N];
};

}  // namespace tessera::simt

#if defined(__CUDACC__)
#define SIMT_UNROLL _Pragma("unroll")
#define SIMT_LOOP _Pragma("unroll 1")
#include "kernels/cuda/simt_nvidia.h"
#elif defined(TESSERA_SIMT_HEADER)
#define SIMT_UNROLL
#define SIMT_LOOP
#include TESSERA_SIMT_HEADER  // the emulator's words; the build of the tests names the file
#else
#error "kernels are compiled by nvcc, or with -DTESSERA_SIMT_HEADER='\"test/simt/simt_emulated.h\"' for the emulator"
#endif
