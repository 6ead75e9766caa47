#include "zero/lifetimes.h"

#include <catch2/catch.hpp>
#include <random>

using namespace tessera;

namespace {

/// The definition itself: the sum at every time.
std::int64_t sum_at(const std::vector<Lifetime>& lifetimes, std::int64_t time) {
    std::int64_t sum = 0;
    for (const Lifetime& one : lifetimes) {
        sum += one.begin <= time && time < one.end ? one.size : 0;
    }
    return sum;
}

}  // namespace

TEST_CASE("buffers that are needed at the same time do not overlap") {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        std::vector<Lifetime> lifetimes(random() % 12);
        for (Lifetime& one : lifetimes) {
            one.begin = static_cast<std::int64_t>(random() % 20);
            one.end = one.begin + 1 + static_cast<std::int64_t>(random() % 6);
            one.size = 1 + static_cast<std::int64_t>(random() % 9);
        }
        const Placement placement = place(lifetimes);
        std::int64_t largest = 0;
        for (std::int64_t time = 0; time < 30; ++time) {
            largest = std::max(largest, sum_at(lifetimes, time));
            std::vector<int> taken(static_cast<std::size_t>(placement.size), 0);
            for (std::size_t i = 0; i < lifetimes.size(); ++i) {
                if (lifetimes[i].begin <= time && time < lifetimes[i].end) {
                    for (std::int64_t k = 0; k < lifetimes[i].size; ++k) {
                        REQUIRE(++taken.at(static_cast<std::size_t>(placement.offsets[i] + k)) == 1);
                    }
                }
            }
        }
        CHECK(largest_sum(lifetimes) == largest);
        CHECK(placement.size >= largest);
    }
}

TEST_CASE("two buffers by turns take two places") {
    // A, B, A', B': each begins before the one before it ends.
    const Placement placement = place({{0, 2, 10}, {1, 3, 10}, {2, 4, 10}, {3, 5, 10}});
    CHECK(placement.size == 20);
    CHECK(placement.offsets[0] == placement.offsets[2]);
    CHECK(placement.offsets[1] == placement.offsets[3]);
}
