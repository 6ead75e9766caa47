// Moving, converting and adding rows; sums of columns and of squares. Contracts as in kernels/ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/view.h"

namespace tessera::cpu {

void zero(Matrix x, int threads);
void copy(Matrix to, ConstMatrix from, int threads);
void add(Matrix y, ConstMatrix a, ConstMatrix b, DType storage, int threads);
void gather_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows, DType storage, int threads);
/// to[rows[i]] += from[i], i ascending; `from` in the storage type, `to` in float or bfloat16.
void accumulate_rows(Matrix to, ConstMatrix from, std::span<const std::int32_t> rows, DType storage, int threads);
void sum_rows(Matrix y, ConstMatrix pieces, bool add, int threads);
void bias_backward(Matrix db, ConstMatrix dy, DType storage, int threads);
[[nodiscard]] double squared_norm(ConstMatrix x, int threads);

}  // namespace tessera::cpu
