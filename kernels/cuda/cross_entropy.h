// Log-probs, entropy and the gradient of cross-entropy over a tile of logits [rows, V] in f32. Contracts as in
// kernels/ops.h; all memory is the device's. The largest logit of a row is subtracted before any exponential, and
// logits of minus infinity have probability 0; a NaN in a row, or a row without a finite logit, gives NaN.
#pragma once

#include <cstdint>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// log_probs[r] = z[target] - logsumexp(z) with z = logits / temperature; entropy[r] = entropy of softmax(z) in nats,
/// skipped where empty. log_probs, entropy [1, rows] f32; targets [rows].
void log_prob_forward(simt::Stream stream, Matrix log_probs, Matrix entropy, ConstMatrix logits,
                      const std::int32_t* targets, double temperature);
/// log_probs as above at temperature 1, and dlogits[r] = weights[r] * (softmax(logits[r]) - onehot(targets[r])).
/// weights [1, rows] f32; dlogits [rows, V] in f32, bf16 or f16; in f32 it may be `logits`. A row of weight 0 has
/// gradient exactly 0, whatever its logits.
void cross_entropy(simt::Stream stream, Matrix log_probs, Matrix dlogits, ConstMatrix logits,
                   const std::int32_t* targets, ConstMatrix weights);

}  // namespace tessera::cuda
