// How flash attention cuts the packed segments into tiles.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"
#include "kernels/ops.h"

namespace tessera::cpu {

/// The natural logarithm of 2 and its inverse: softmax runs in powers of 2.
inline constexpr double kLn2 = 0.69314718055994530942;
inline constexpr double kLog2E = 1.44269504088896340736;

/// A run of positions of one segment.
struct Tile {
    std::int64_t segment_begin;
    std::int64_t segment_end;
    std::int64_t begin;
    std::int64_t end;
};

/// Columns of a head as tiles in scratch hold them: a multiple of the vectors.
[[nodiscard]] inline std::int64_t padded_head(std::int64_t head_dim) {
    return round_up(head_dim, kLanes);
}

/// Cuts every segment into tiles of `length` positions from its beginning; the last may be shorter. `tiles` has room
/// for one tile a token, which is enough: no tile is empty. Returns them in the order of the tokens.
[[nodiscard]] inline std::span<const Tile> cut_segments(Tile* tiles, std::span<const std::int64_t> starts,
                                                        std::int64_t length) {
    std::size_t count = 0;
    for (std::size_t s = 0; s + 1 < starts.size(); ++s) {
        for (std::int64_t begin = starts[s]; begin < starts[s + 1]; begin += length) {
            tiles[count++] = {starts[s], starts[s + 1], begin, std::min(begin + length, starts[s + 1])};
        }
    }
    return {tiles, count};
}

/// Hides invisible keys: value where key j is visible to query i (`distance` = i - j), else `hidden`.
[[nodiscard]] inline Vec select_visible(IntVec distance, std::int32_t window, Vec value, Vec hidden) {
    return ((distance >= 0) & (distance < window)) ? value : hidden;
}

/// The window as the masks use it: where there is none, more than any distance.
[[nodiscard]] inline std::int32_t mask_window(std::int64_t window) {
    constexpr std::int64_t kUnlimited = 0x7fffffff;
    return static_cast<std::int32_t>(window == 0 ? kUnlimited : std::min(window, kUnlimited));
}

}  // namespace tessera::cpu
