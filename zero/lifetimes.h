// Places for buffers of known lifetimes in one block of memory: what is never needed at the same time may overlap.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

/// A buffer that is needed at the times begin, begin + 1, ... end - 1.
struct Lifetime {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size = 0;
};

struct Placement {
    std::vector<std::int64_t> offsets;  // one a lifetime
    std::int64_t size = 0;              // of the block
};

/// First fit, the largest buffers first: each at the lowest offset at which it meets no buffer of its time.
[[nodiscard]] Placement place(const std::vector<Lifetime>& lifetimes);

/// The largest sum of sizes at any time.
[[nodiscard]] std::int64_t largest_sum(const std::vector<Lifetime>& lifetimes);

}  // namespace tessera
