// Moving, converting, adding and scaling elements. Contracts as in kernels/ops.h; all memory is the device's, arguments
// are checked by the caller. What is said here is done in the order of `stream`.
#pragma once

#include <cstdint>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

void zero(simt::Stream stream, Matrix x);
/// to = from, converted; same shape, any of f32, bf16 and f16. They may not overlap.
void copy(simt::Stream stream, Matrix to, ConstMatrix from);
/// y = a + b, of one dtype; y may be a or b.
void add(simt::Stream stream, Matrix y, ConstMatrix a, ConstMatrix b);
/// x *= factor, in fp32.
void scale(simt::Stream stream, Matrix x, double factor);
/// to[i] = from[rows[i]] for the rows of `to`, of one dtype.
void gather_rows(simt::Stream stream, Matrix to, ConstMatrix from, const std::int32_t* rows);
/// to[sorted_rows[i]] += from[order[i]], i ascending, each sum rounded to the dtype of `to`. `to` and `from` are of one
/// dtype, or `to` is f32. The host gives the order: `order` holds 0 .. from.rows - 1, sorted stably by the row that
/// each adds to, and sorted_rows[i] is the row of order[i]; so each row of `to` is summed by threads of its own, in
/// the order of `from`.
void scatter_add_rows(simt::Stream stream, Matrix to, ConstMatrix from, const std::int32_t* order,
                      const std::int32_t* sorted_rows);

}  // namespace tessera::cuda
