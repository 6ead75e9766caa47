#include "kernels/cuda/attention_batches.h"

#include <algorithm>
#include <bit>
#include <map>

namespace tessera::cuda {

std::int64_t batch_length(std::int64_t length) {
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;
    if (length > kLongest) {
        fail(ExitCode::internal, "an attention segment of {} tokens; at most {} can be", length, kLongest);
    }
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(length, kShortestBatch))));
}

std::int64_t tokens_of_batch(const OpsLimits& limits) {
    constexpr std::int64_t kScores = std::int64_t{1} << 29;  // 1 GiB
    const std::int64_t longest = batch_length(limits.longest_segment);
    std::int64_t tokens = longest;
    while (tokens < limits.tokens && 2 * tokens <= kScores / longest / std::max<std::int64_t>(limits.heads, 1)) {
        tokens *= 2;
    }
    return tokens;
}

std::vector<AttentionBatch> attention_batches(std::span<const std::int64_t> starts, std::int64_t tokens_of_batch) {
    std::vector<AttentionBatch> batches;
    std::map<std::int64_t, std::size_t> open;  // the last batch of each length
    for (std::size_t s = 1; s < starts.size(); ++s) {
        const std::int64_t length = starts[s] - starts[s - 1];
        if (length == 0) {
            continue;
        }
        const std::int64_t longest = batch_length(length);
        if (longest > tokens_of_batch) {
            fail(ExitCode::internal, "an attention segment of {} tokens exceeds what was planned ({})", length,
                 tokens_of_batch);
        }
        const auto last = open.find(longest);
        if (last == open.end() || std::ssize(batches[last->second].lengths) == tokens_of_batch / longest) {
            open[longest] = batches.size();
            batches.push_back({.longest = longest, .starts = {}, .lengths = {}});
        }
        AttentionBatch& batch = batches[open[longest]];
        batch.starts.push_back(starts[s - 1]);
        batch.lengths.push_back(static_cast<std::int32_t>(length));
    }
    for (AttentionBatch& batch : batches) {
        const auto slots = static_cast<std::size_t>(tokens_of_batch / batch.longest);
        batch.starts.resize(slots + 1, batch.starts.back() + batch.lengths.back());
        batch.lengths.resize(slots, 0);
    }
    return batches;
}

}  // namespace tessera::cuda
