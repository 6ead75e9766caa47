// Rotary position embedding in place. Contract as in kernels/ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace tessera::cpu {

void rope(Matrix x, const RopeTable& table, std::span<const std::int32_t> positions, std::int64_t head_dim,
          bool inverse, DType storage, int threads);

}  // namespace tessera::cpu
