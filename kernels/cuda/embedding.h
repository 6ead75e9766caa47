// Rows of an embedding table and the sum of their gradients. Contracts as in kernels/ops.h; all memory is the device's.
#pragma once

#include <cstdint>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// out[t] = table[ids[t]]; out [T, H] and table [V, H] of one dtype.
void embedding_forward(simt::Stream stream, Matrix out, ConstMatrix table, const std::int32_t* ids);
/// dtable[ids[t]] += dout[t], tokens of one id in ascending order; dtable [V, H] f32, dout [T, H] of any dtype. The
/// host gives the order: `order` holds the tokens sorted stably by id, and sorted_ids[i] is the id of order[i].
void embedding_backward(simt::Stream stream, Matrix dtable, ConstMatrix dout, const std::int32_t* order,
                        const std::int32_t* sorted_ids);

}  // namespace tessera::cuda
