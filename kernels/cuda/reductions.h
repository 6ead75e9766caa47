// Sums over vectors that the optimizer needs; all memory is the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// y = pieces[0] + pieces[1] + ... in that order, in fp32; with `add`: y = y + pieces[0] + ... y [1, cols] f32, pieces
/// [n, cols] with n >= 1 in f32, bf16 or f16. y may be pieces' first row.
void sum_rows(simt::Stream stream, Matrix y, ConstMatrix pieces, bool add);

/// Bytes of workspace (on the device, 16-byte aligned) of each of the two below.
[[nodiscard]] std::int64_t reduction_workspace_bytes();
/// *sum = sum of squares of x in double, in an order that depends on the number of elements only; with `add`: *sum plus
/// that. x: a contiguous vector, f32. An empty one has the sum 0.
void squared_norm(simt::Stream stream, double* sum, ConstMatrix x, bool add, std::span<std::byte> workspace);
/// *count += elements of x that are infinite or NaN. x in f32, bf16 or f16.
void count_non_finite(simt::Stream stream, std::int64_t* count, ConstMatrix x, std::span<std::byte> workspace);

}  // namespace tessera::cuda
