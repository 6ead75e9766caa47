// What both passes of RMSNorm are made of: the threads that share a group, and the chunks of elements that they take.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/base/checked.h"
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/rows.h"

namespace tessera::cuda::rmsnorm {

inline constexpr int kThreads = 256;
/// Neighbouring elements that a thread takes at once, whether or not they can be accessed as vectors: the order of the
/// sums depends on sizes only.
inline constexpr int kChunk = 8;
/// Groups of more columns are shared out among a whole block, others among at most a warp.
inline constexpr std::int64_t kWarpColumns = 1024;

/// Chunks of a group that a thread keeps in registers from one pass over the group to the next; what is beyond them is
/// read again.
template <typename S>
inline constexpr int kKept = sizeof(S) == 2 ? 4 : 2;

/// The threads that work on one group: a whole block, or up to 32 neighbouring lanes.
template <bool kWholeBlock>
struct Team {
    int lanes;  // of a team; kThreads where it is a block

    SIMT_DEVICE int size() const { return kWholeBlock ? kThreads : lanes; }
    SIMT_DEVICE int rank() const { return kWholeBlock ? simt::thread() : simt::thread() % lanes; }
    /// Place of the team in its block, and teams of a block.
    SIMT_DEVICE int slot() const { return kWholeBlock ? 0 : simt::thread() / lanes; }
    SIMT_DEVICE int slots() const { return kWholeBlock ? 1 : kThreads / lanes; }
    /// All threads of the block must come. `shared` as for reduce_block().
    SIMT_DEVICE float sum(float value, float* shared) const {
        if constexpr (kWholeBlock) {
            return reduce_block<Sum, kThreads>(value, shared);
        } else {
            return reduce_lanes<Sum>(value, lanes);
        }
    }
};

/// kChunk elements as they are stored, packed into words: reading many of them before any is looked at keeps the memory
/// busy, and so they take the fewest registers.
template <typename S>
struct Chunk {
    static constexpr int kPacked = 4 / static_cast<int>(sizeof(S));  // elements of a word
    static constexpr int kWords = kChunk / kPacked;
    std::uint32_t words[kWords];

    SIMT_DEVICE float operator[](int i) const {
        if constexpr (kPacked == 1) {
            return simt::float_of(words[i]);
        } else {
            S element;
            element.bits = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
            return simt::to_float(element);
        }
    }
    /// Rounds to S.
    SIMT_DEVICE void set(const float (&values)[kChunk]) {
        for (int i = 0; i < kWords; ++i) {
            if constexpr (kPacked == 1) {
                words[i] = simt::bits_of(values[i]);
            } else {
                words[i] = simt::pack2<S>(values[2 * i], values[2 * i + 1]);
            }
        }
    }

    /// `left` elements of the row are left: with kVectors at least kChunk, which are aligned; else zeros follow them.
    template <bool kVectors>
    SIMT_DEVICE void load(const S* from, std::int64_t left) {
        if constexpr (kVectors) {
            load_elements(words, reinterpret_cast<const std::uint32_t*>(from));
        } else {
            float values[kChunk];
            for (int i = 0; i < kChunk; ++i) {
                values[i] = i < left ? simt::to_float(from[i]) : 0;
            }
            set(values);
        }
    }
    template <bool kVectors>
    SIMT_DEVICE void store(S* to, std::int64_t left) const {
        if constexpr (kVectors) {
            store_elements(reinterpret_cast<std::uint32_t*>(to), words);
        } else {
            for (int i = 0; i < kChunk; ++i) {
                if (i < left) {
                    to[i] = simt::from_float<S>((*this)[i]);
                }
            }
        }
    }
};

/// Lanes that work on a group of `cols` columns; kThreads: a whole block.
inline int team_size(std::int64_t cols) {
    if (cols > kWarpColumns) {
        return kThreads;
    }
    const auto chunks = static_cast<std::uint64_t>(ceil_div(cols, kChunk));
    return static_cast<int>(std::min<std::uint64_t>(simt::kWarp, std::bit_ceil(chunks)));
}

/// Calls body(S{}, team, vectors) with the storage type, the Team for groups of `cols` columns and whether all chunks
/// of the groups in all these matrices are whole and aligned, as a std::bool_constant.
template <typename Body, typename... Matrices>
void with_kernel(DType storage, std::int64_t cols, const Body& body, const Matrices&... matrices) {
    const int lanes = team_size(cols);
    const bool vectors = cols % kChunk == 0 && all_aligned<kChunk>(matrices...);
    const auto with_team = [&](auto type, auto team) {
        if (vectors) {
            body(type, team, std::true_type());
        } else {
            body(type, team, std::false_type());
        }
    };
    with_storage(storage, [&](auto type) {
        if (lanes == kThreads) {
            with_team(type, Team<true>{lanes});
        } else {
            with_team(type, Team<false>{lanes});
        }
    });
}

}  // namespace tessera::cuda::rmsnorm
