// Attention in tiles: scores of a tile live in the caches and are never written as a matrix. Contracts as in
// kernels/ops.h.
//
// Forward keeps a running maximum and sum per query (Milakov & Gimelshein 2018; Dao 2023); backward recomputes the
// probabilities from the log-sum-exp. Every sum has one order whatever the number of threads, and a segment's numbers
// do not depend on what else is in the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace tessera::cpu {

[[nodiscard]] std::int64_t flash_attention_workspace(const OpsLimits& limits, DType storage, int threads);

void flash_attention_forward(Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                             const AttentionShape& shape, DType storage, std::span<std::byte> workspace, int threads);
void flash_attention_backward(Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q, ConstMatrix k,
                              ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape,
                              DType storage, std::span<std::byte> workspace, int threads);

}  // namespace tessera::cpu
