// Softmax of rows whose scores come tile by tile (Milakov & Gimelshein 2018), in logarithms to base 2.
#pragma once

#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr float kLn2 = 0.69314718F;

template <typename Engine>
struct RunningSoftmax {
    float largest[Engine::kThreadRows];
    float sum[Engine::kThreadRows];  // of this thread's columns

    SIMT_DEVICE void clear() {
        SIMT_UNROLL
        for (int i = 0; i < Engine::kThreadRows; ++i) {
            largest[i] = -kInfinity;
            sum[i] = 0;
        }
    }

    /// Turns scores into weights relative to the largest score so far, and `output`, which the weights of earlier tiles
    /// were summed into, into what is relative to it too.
    SIMT_DEVICE void add(typename Engine::Scores& scores, typename Engine::Output& output) {
        SIMT_UNROLL
        for (int i = 0; i < Engine::kThreadRows; ++i) {
            float top = largest[i];
            SIMT_UNROLL
            for (int j = 0; j < Engine::kThreadColumns; ++j) {
                top = simt::max(top, scores.at(i, j));
            }
            top = Engine::row_max(top);
            // A row that has seen no key yet: all its weights are 2^-inf, whatever finite number is taken away.
            const float base = top == -kInfinity ? 0.0F : top;
            const float shrink = simt::exp2_approx(largest[i] - base);
            largest[i] = top;
            float added = 0;
            SIMT_UNROLL
            for (int j = 0; j < Engine::kThreadColumns; ++j) {
                scores.at(i, j) = simt::exp2_approx(scores.at(i, j) - base);
                added += scores.at(i, j);
            }
            sum[i] = sum[i] * shrink + added;
            SIMT_UNROLL
            for (int d = 0; d < Engine::kThreadDepth; ++d) {
                output.at(i, d) *= shrink;
            }
        }
    }
};

}  // namespace tessera::cuda
