#include "zero/lifetimes.h"

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

bool meet(const Lifetime& a, const Lifetime& b) {
    return a.begin < b.end && b.begin < a.end;
}

}  // namespace

Placement place(const std::vector<Lifetime>& lifetimes) {
    Placement placement;
    placement.offsets.assign(lifetimes.size(), 0);
    std::vector<std::size_t> order(lifetimes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order,
                             [&](std::size_t a, std::size_t b) { return lifetimes[a].size > lifetimes[b].size; });
    std::vector<std::size_t> placed;  // sorted by offset
    for (const std::size_t one : order) {
        std::int64_t offset = 0;
        for (const std::size_t other : placed) {
            if (!meet(lifetimes[one], lifetimes[other])) {
                continue;
            }
            if (offset + lifetimes[one].size <= placement.offsets[other]) {
                break;  // fits into the gap before it
            }
            offset = std::max(offset, placement.offsets[other] + lifetimes[other].size);
        }
        placement.offsets[one] = offset;
        placement.size = std::max(placement.size, offset + lifetimes[one].size);
        placed.insert(std::ranges::upper_bound(placed, offset, {}, [&](std::size_t p) { return placement.offsets[p]; }),
                      one);
    }
    return placement;
}

std::int64_t largest_sum(const std::vector<Lifetime>& lifetimes) {
    std::int64_t largest = 0;
    for (const Lifetime& start : lifetimes) {  // a sum grows only where a lifetime begins
        std::int64_t sum = 0;
        for (const Lifetime& other : lifetimes) {
            sum += other.begin <= start.begin && start.begin < other.end ? other.size : 0;
        }
        largest = std::max(largest, sum);
    }
    return largest;
}

}  // namespace tessera
