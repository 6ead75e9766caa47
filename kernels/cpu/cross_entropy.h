// Log-probabilities of targets, entropies, and the gradient of the cross-entropy. Contracts as in kernels/ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/view.h"

namespace tessera::cpu {

void log_prob_forward(Matrix log_probs, Matrix entropy, ConstMatrix logits, std::span<const std::int32_t> targets,
                      double temperature, int threads);
void cross_entropy(Matrix log_probs, Matrix dlogits, ConstMatrix logits, std::span<const std::int32_t> targets,
                   ConstMatrix weights, DType storage, int threads);

}  // namespace tessera::cpu
