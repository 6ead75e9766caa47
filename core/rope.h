// Angles of rotary position embedding. A head's dimension i turns together with dimension i + head_dim / 2.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model_config.h"

namespace tessera {

/// Radians a position for each of the head_dim / 2 pairs of dimensions.
[[nodiscard]] std::vector<double> inverse_frequencies(const RopeConfig& rope, std::int64_t head_dim);

/// Fills `cos` and `sin`, each [positions, head_dim / 2] row-major, for positions 0 to positions - 1. Computed in
/// double and multiplied by the attention factor before the one rounding to T (float or double).
template <typename T>
void fill_rope_tables(const RopeConfig& rope, std::int64_t head_dim, std::int64_t positions, T* cos, T* sin);

}  // namespace tessera
