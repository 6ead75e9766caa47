// Mixing of bits, for random numbers that are functions of what they are for.
#pragma once

#include <cstdint>

namespace tessera {

/// Mixes 64 bits so that every input bit changes every output bit with probability near one half (the finaliser of
/// SplitMix64, Steele, Lea and Flood 2014).
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

}  // namespace tessera
