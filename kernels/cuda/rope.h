// Rotary embedding. Contract as in kernels/ops.h; all memory is the device's.
#pragma once

#include <cstdint>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace tessera::cuda {

/// Turns the pairs (i, i + D / 2) of every head of x [T, n * D] by the angle of (positions[t], i), in place; back where
/// `inverse`. The tables are f32, in memory of the device; positions [T].
void rope(simt::Stream stream, Matrix x, const RopeTable& table, const std::int32_t* positions, std::int64_t head_dim,
          bool inverse);

}  // namespace tessera::cuda
