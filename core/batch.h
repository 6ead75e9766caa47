// A micro-batch: the tokens that one rank runs through the model at once, packed without padding.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

struct MicroBatch {
    std::vector<std::int32_t> tokens;         // [T] inputs, each in [0, vocab_size)
    std::vector<std::int32_t> positions;      // [T] for rope
    std::vector<std::int64_t> starts = {0};   // [segments + 1]: tokens [starts[s], starts[s+1]) attend to each other
    std::vector<std::int32_t> target_rows;    // [R] rows of hidden states that enter the head, ascending
    std::vector<std::int32_t> target_tokens;  // [R] what the row predicts
    std::vector<float> target_weights;        // [R] weight of each target in the loss sum
    // A row of the batch is what the packing made of the data; how many of them are in here.
    std::int64_t rows = 0;

    [[nodiscard]] std::int64_t token_count() const { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::int64_t target_count() const { return static_cast<std::int64_t>(target_rows.size()); }
    [[nodiscard]] std::int64_t longest_segment() const {
        std::int64_t longest = 0;
        for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
            longest = starts[s + 1] - starts[s] > longest ? starts[s + 1] - starts[s] : longest;
        }
        return longest;
    }
};

}  // namespace tessera
