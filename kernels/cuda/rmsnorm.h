// RMSNorm over groups of weight.cols columns. Contracts as in kernels/ops.h; all memory is the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// sum = x + delta (rounded to S); y = S(S(sum * rstd) * weight), rstd = 1 / sqrt(mean(sum^2) + eps). delta may be
/// empty: then sum is not written and x is normalised. sum may be x or delta. x, y, sum, delta [T, groups *
/// weight.cols] and weight [1, cols] of one dtype; rstd [T, groups] f32.
void add_rmsnorm_forward(simt::Stream stream, Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta,
                         ConstMatrix weight, double eps);

/// Bytes of workspace (on the device, 16-byte aligned) of a backward pass over `groups` groups in all rows together,
/// each of `cols` columns.
[[nodiscard]] std::int64_t rmsnorm_backward_workspace_bytes(std::int64_t groups, std::int64_t cols);
/// dx = dresidual + gradient through the norm of x; dresidual may be empty (0) and may be dx; dy may be dx where
/// dresidual is empty. dweight += its gradient (dweight [1, cols] f32); where dweight is empty it is not computed and
/// no workspace is needed.
void rmsnorm_backward(simt::Stream stream, Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy,
                      ConstMatrix x, ConstMatrix rstd, ConstMatrix weight, std::span<std::byte> workspace);

}  // namespace tessera::cuda
