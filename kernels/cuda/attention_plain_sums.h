// The two products of attention as sums of fp32, for f32 elements. Half a warp has M rows of the block's tile, 16
// apart, each of its lanes N columns of the scores and D / 16 of the output. Probabilities go from one product to the
// next through shared memory that no other half-warp reads.
#pragma once

#include <cstddef>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

template <int D, int M, int N>
struct PlainSums {
    static constexpr int kThreads = 256;
    static constexpr int kRows = 16 * M;
    static constexpr int kColumns = 16 * N;
    static constexpr int kThreadRows = M;
    static constexpr int kThreadColumns = N;
    static constexpr int kThreadDepth = D / 16;
    // Two half-warps write a row each at once: an odd number of half-lines apart.
    static constexpr int kScratchStride = kColumns % 32 == 0 ? kColumns + 16 : kColumns;
    static constexpr int kScratchBytes = kRows * kScratchStride * static_cast<int>(sizeof(float));

    using Tile = SharedRows<float, D>;

    template <int K>
    struct Elements {
        float values[M][K];

        SIMT_DEVICE float& at(int i, int j) { return values[i][j]; }
        SIMT_DEVICE void clear() {
            SIMT_UNROLL
            for (int i = 0; i < M; ++i) {
                SIMT_UNROLL
                for (int j = 0; j < K; ++j) {
                    values[i][j] = 0;
                }
            }
        }
    };
    using Scores = Elements<N>;
    using Output = Elements<kThreadDepth>;

    SIMT_DEVICE static int row(int i) { return simt::thread() / 16 + 16 * i; }
    SIMT_DEVICE static int column(int j) { return simt::thread() % 16 + 16 * j; }
    SIMT_DEVICE static bool leads_row() { return simt::thread() % 16 == 0; }

    SIMT_DEVICE static float row_max(float x) {
        SIMT_UNROLL
        for (int bits = 1; bits < 16; bits *= 2) {
            x = simt::max(x, simt::shuffle_xor(x, bits));
        }
        return x;
    }
    SIMT_DEVICE static float row_sum(float x) {
        SIMT_UNROLL
        for (int bits = 1; bits < 16; bits *= 2) {
            x += simt::shuffle_xor(x, bits);
        }
        return x;
    }

    /// scores = a bT for the rows a of the block and kColumns rows b.
    SIMT_DEVICE static void multiply(Scores& scores, Tile a, Tile b) {
        scores.clear();
        for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
            simt::Vector<float, 4> left[M];
            SIMT_UNROLL
            for (int i = 0; i < M; ++i) {
                left[i] = simt::load_vector<4>(a.chunk(row(i), chunk));
            }
            SIMT_UNROLL
            for (int j = 0; j < N; ++j) {
                const auto right = simt::load_vector<4>(b.chunk(column(j), chunk));
                SIMT_UNROLL
                for (int i = 0; i < M; ++i) {
                    SIMT_UNROLL
                    for (int e = 0; e < 4; ++e) {
                        scores.at(i, j) += left[i].v[e] * right.v[e];
                    }
                }
            }
        }
    }

    /// output += scores b for kColumns rows b. scratch: kScratchBytes of shared memory.
    SIMT_DEVICE static void accumulate(Output& output, Scores& scores, Tile b, std::byte* scratch) {
        auto* shared = reinterpret_cast<float*>(scratch);
        simt::sync_warp();  // what lay there is read
        SIMT_UNROLL
        for (int i = 0; i < M; ++i) {
            SIMT_UNROLL
            for (int j = 0; j < N; ++j) {
                shared[row(i) * kScratchStride + column(j)] = scores.at(i, j);
            }
        }
        simt::sync_warp();
        for (int k = 0; k < kColumns; k += 4) {
            simt::Vector<float, 4> left[M];
            SIMT_UNROLL
            for (int i = 0; i < M; ++i) {
                left[i] = simt::load_vector<4>(shared + row(i) * kScratchStride + k);
            }
            SIMT_UNROLL
            for (int e = 0; e < 4; ++e) {
                SIMT_UNROLL
                for (int n = 0; n < kThreadDepth / 4; ++n) {
                    const auto right = simt::load_vector<4>(b.chunk(k + e, column(n)));
                    SIMT_UNROLL
                    for (int i = 0; i < M; ++i) {
                        SIMT_UNROLL
                        for (int x = 0; x < 4; ++x) {
                            output.at(i, 4 * n + x) += left[i].v[e] * right.v[x];
                        }
                    }
                }
            }
        }
    }

    /// Rows of the block, each multiplied by its factor.
    SIMT_DEVICE static void put(Tile to, Output& output, const float (&factors)[kThreadRows]) {
        SIMT_UNROLL
        for (int i = 0; i < M; ++i) {
            SIMT_UNROLL
            for (int n = 0; n < kThreadDepth / 4; ++n) {
                simt::Vector<float, 4> elements;
                SIMT_UNROLL
                for (int x = 0; x < 4; ++x) {
                    elements.v[x] = output.at(i, 4 * n + x) * factors[i];
                }
                simt::store_vector(to.chunk(row(i), column(n)), elements);
            }
        }
    }
};

}  // namespace tessera::cuda
