// Packed segments as batches for a library's attention, whose kernels are built for a number of segments and a length,
// and whose memory grows with the square of the length: segments of about the same length go together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace tessera::cuda {

/// Lengths of batches are powers of two from this one, which is about a tile of a kernel.
inline constexpr std::int64_t kShortestBatch = 128;

/// What one call takes. Slots without a segment have length 0.
struct AttentionBatch {
    std::int64_t longest = 0;           // at least the length of each segment
    std::vector<std::int64_t> starts;   // the first token of each slot, and the end of the last segment
    std::vector<std::int32_t> lengths;  // tokens of each slot
};

/// The least power of two that is at least `length` and kShortestBatch: the `longest` of a segment's batch. More than
/// 2^30 tokens throw Error(internal).
[[nodiscard]] std::int64_t batch_length(std::int64_t length);

/// Slots times length of every batch within `limits`, a power of two: that of the longest segment, and more, up to the
/// tokens, as long as the scores of a batch (2 bytes each) stay small.
[[nodiscard]] std::int64_t tokens_of_batch(const OpsLimits& limits);

/// The segments of `starts` (as in AttentionShape) in batches of tokens_of_batch / longest slots, which is at least 1.
/// All starts, rounded up to 2 a batch, take no more than 24 bytes a token of the limits, and so do lengths.
[[nodiscard]] std::vector<AttentionBatch> attention_batches(std::span<const std::int64_t> starts,
                                                            std::int64_t tokens_of_batch);

}  // namespace tessera::cuda
