// Packed segments in batches of about the same length.
#include "kernels/cuda/attention_batches.h"

#include <bit>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "kernels/cuda/attention.h"

using namespace tessera;
using namespace tessera::cuda;

namespace {

using Starts = std::vector<std::int64_t>;

/// Every segment that is not empty is in one slot of one batch, and what a library would be given is as it must be.
void require_batches(const Starts& starts, const OpsLimits& limits) {
    const std::int64_t tokens = tokens_of_batch(limits);
    CAPTURE(starts, limits.tokens, limits.longest_segment, limits.heads, tokens);
    REQUIRE(std::has_single_bit(static_cast<std::uint64_t>(tokens)));
    std::map<std::int64_t, std::int64_t> expected;
    for (std::size_t s = 1; s < starts.size(); ++s) {
        if (starts[s] > starts[s - 1]) {
            expected[starts[s - 1]] = starts[s] - starts[s - 1];
        }
    }
    std::map<std::int64_t, std::int64_t> found;
    std::int64_t start_bytes = 0;
    std::int64_t length_bytes = 0;
    for (const AttentionBatch& batch : attention_batches(starts, tokens)) {
        REQUIRE(std::ssize(batch.lengths) == tokens / batch.longest);
        REQUIRE(batch.starts.size() == batch.lengths.size() + 1);
        std::int64_t end = 0;
        bool used = true;
        for (std::size_t slot = 0; slot < batch.lengths.size(); ++slot) {
            const std::int64_t length = batch.lengths[slot];
            REQUIRE((used || length == 0));
            used = length > 0;
            if (used) {
                REQUIRE(batch.longest == batch_length(length));
                REQUIRE(batch.starts[slot] >= end);
                REQUIRE(found.emplace(batch.starts[slot], length).second);
                end = batch.starts[slot] + length;
            } else {
                REQUIRE(batch.starts[slot] == end);
            }
        }
        REQUIRE(batch.starts.back() == end);
        start_bytes += 8 * (std::ssize(batch.starts) + 1) / 16 * 16;
        length_bytes += 4 * (std::ssize(batch.lengths) + 3) / 16 * 16;
    }
    CHECK(found == expected);
    const std::int64_t most = limits.tokens * static_cast<std::int64_t>(sizeof(AttentionTile));
    CHECK(start_bytes <= most);
    CHECK(length_bytes <= most);
}

}  // namespace

TEST_CASE("Lengths of batches are powers of two from that of a tile") {
    for (const auto& [length, expected] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 128}, {127, 128}, {128, 128}, {129, 256}, {5000, 8192}, {1 << 30, 1 << 30}}) {
        CHECK(batch_length(length) == expected);
    }
    CHECK_THROWS_WITH(batch_length((1 << 30) + 1), Catch::Contains("segment of 1073741825 tokens"));
}

TEST_CASE("A batch has room for the longest segment, and for more as long as its scores are few") {
    const auto tokens = [](std::int64_t all, std::int64_t longest, std::int64_t heads) {
        return tokens_of_batch({.tokens = all, .heads = heads, .longest_segment = longest});
    };
    CHECK(tokens(10, 5, 1) == 128);
    CHECK(tokens(8192, 512, 14) == 8192);
    CHECK(tokens(8192, 8192, 32) == 8192);       // 4 GiB of scores: no less will do
    CHECK(tokens(1 << 17, 2048, 32) == 8192);    // 1 GiB
    CHECK(tokens(1 << 17, 128, 16) == 1 << 17);  // 512 MiB
}

TEST_CASE("Every segment is in one batch of its length, and the starts take no more room than tiles") {
    require_batches({0}, {.tokens = 1, .heads = 1, .longest_segment = 1});
    require_batches({0, 0, 0}, {.tokens = 1, .heads = 1, .longest_segment = 1});
    require_batches({0, 1}, {.tokens = 1, .heads = 1, .longest_segment = 1});
    require_batches({0, 600, 600, 700, 1300, 1301}, {.tokens = 1301, .heads = 4, .longest_segment = 600});
    Starts single(1001);
    for (std::int64_t i = 0; i <= 1000; ++i) {
        single[static_cast<std::size_t>(i)] = i;
    }
    for (const std::int64_t longest : {1, 200, 1000}) {
        require_batches(single, {.tokens = 1000, .heads = 1, .longest_segment = longest});
    }
    std::mt19937 random(1);
    const auto pick = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    for (int round = 0; round < 300; ++round) {
        const std::int64_t longest = std::int64_t{1} << pick(0, 12);
        Starts starts = {0};
        const std::int64_t segments = pick(0, 60);
        for (std::int64_t s = 0; s < segments; ++s) {
            starts.push_back(starts.back() + pick(0, pick(0, 3) == 0 ? longest : std::min<std::int64_t>(longest, 40)));
        }
        require_batches(starts, {.tokens = std::max<std::int64_t>(starts.back(), 1) + pick(0, 5000),
                                 .heads = pick(1, 128),
                                 .longest_segment = longest});
    }
}

TEST_CASE("A segment longer than planned is a fault of the program") {
    CHECK_THROWS_WITH(attention_batches(Starts{0, 300}, 256), Catch::Contains("exceeds what was planned (256)"));
}
