// RMSNorm with the residual addition before it, and its gradient. Contracts as in kernels/ops.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/view.h"

namespace tessera::cpu {

void add_rmsnorm_forward(Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta, ConstMatrix weight,
                         double eps, DType storage, int threads);

/// Workspace of rmsnorm_backward for groups of up to `columns` columns.
[[nodiscard]] std::int64_t rmsnorm_workspace(std::int64_t columns);

void rmsnorm_backward(Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x, ConstMatrix rstd,
                      ConstMatrix weight, DType storage, std::span<std::byte> workspace, int threads);

}  // namespace tessera::cpu
