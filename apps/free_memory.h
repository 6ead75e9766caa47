// How much memory a rank holds, and how much it may still take on its node.
#pragma once

#include <cstdint>
#include <string>

#include "core/communicator.h"

namespace tessera {

/// RssAnon + RssShmem of this process in bytes, as the kernel counts them; 0 where it does not say.
[[nodiscard]] std::int64_t resident_bytes();

struct FreeMemory {
    std::int64_t bytes = 0;
    std::string source;  // what sets the bound, in words

    bool operator==(const FreeMemory&) const = default;
};

/// The least of what the node has available, what is left in the control groups of this process (pages of files, which
/// can be dropped, do not count as taken), each shared evenly among `ranks` ranks of the node, and this process's own
/// limits (ulimit -v, -d). `root`: where /proc and /sys are; another place for tests.
[[nodiscard]] FreeMemory free_memory(std::int64_t ranks, const std::string& root = "");

/// The least of what the ranks have; collective.
[[nodiscard]] FreeMemory least_of_all(const FreeMemory& own, const Communicator& communicator);

}  // namespace tessera
