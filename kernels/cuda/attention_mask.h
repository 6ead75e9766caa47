// Which query sees which key, and scores that say so. Queries and keys are counted from the begin of their segment.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/simt.h"

namespace tessera::cuda {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A query sees itself and the window - 1 keys before it.
struct CausalWindow {
    int window;  // the largest int: none

    SIMT_DEVICE bool visible(int query, int key) const { return key <= query && query - key < window; }
    /// Whether every query of a range (both ends included) sees every key of another.
    SIMT_DEVICE bool all_visible(int first_query, int last_query, int first_key, int last_key) const {
        return last_key <= first_query && last_query - first_key < window;
    }
    SIMT_DEVICE int first_key(int query) const { return simt::max(0, query - (window - 1)); }
    /// Behind the last query that sees a key, in a segment of `length` tokens.
    SIMT_DEVICE int queries_end(int key, int length) const { return window < length - key ? key + window : length; }
};

/// What the host's window (0: none) is on the device.
[[nodiscard]] inline CausalWindow causal_window(std::int64_t window) {
    constexpr std::int64_t kNone = std::numeric_limits<int>::max();
    return {static_cast<int>(window <= 0 || window > kNone ? kNone : window)};
}

/// Which side of a tile of scores its rows are.
enum class ScoreRows { queries, keys };

/// Products of queries and keys become logarithms to base 2 of weights; of pairs that do not see each other, minus
/// infinity. This hides keys beyond the end of the segment from its queries too: they come later.
template <ScoreRows kSide, typename Engine>
SIMT_DEVICE void scale_and_mask(typename Engine::Scores& scores, float factor, CausalWindow window, int first_row,
                                int first_column) {
    SIMT_UNROLL
    for (int i = 0; i < Engine::kThreadRows; ++i) {
        SIMT_UNROLL
        for (int j = 0; j < Engine::kThreadColumns; ++j) {
            scores.at(i, j) *= factor;
        }
    }
    const int last_row = first_row + Engine::kRows - 1;
    const int last_column = first_column + Engine::kColumns - 1;
    if (kSide == ScoreRows::queries ? window.all_visible(first_row, last_row, first_column, last_column)
                                    : window.all_visible(first_column, last_column, first_row, last_row)) {
        return;
    }
    SIMT_UNROLL
    for (int i = 0; i < Engine::kThreadRows; ++i) {
        const int row = first_row + Engine::row(i);
        SIMT_UNROLL
        for (int j = 0; j < Engine::kThreadColumns; ++j) {
            const int column = first_column + Engine::column(j);
            const bool visible =
                kSide == ScoreRows::queries ? window.visible(row, column) : window.visible(column, row);
            scores.at(i, j) = visible ? scores.at(i, j) : -kInfinity;
        }
    }
}

}  // namespace tessera::cuda
