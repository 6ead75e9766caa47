// Sums over the rows of a matrix, in an order that depends on the number of rows only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// Bytes of workspace (on the device, 16-byte aligned) that sums over [rows, cols] need.
[[nodiscard]] std::int64_t column_sums_workspace_bytes(std::int64_t rows, std::int64_t cols);
/// sums += sums over the rows of x, in fp32; sums [1, cols] f32, x [rows, cols] in f32, bf16 or f16.
void add_column_sums(simt::Stream stream, Matrix sums, ConstMatrix x, std::span<std::byte> workspace);

/// db += column sums of dy. Contract as in kernels/ops.h.
inline void bias_backward(simt::Stream stream, Matrix db, ConstMatrix dy, std::span<std::byte> workspace) {
    add_column_sums(stream, db, dy, workspace);
}

}  // namespace tessera::cuda
