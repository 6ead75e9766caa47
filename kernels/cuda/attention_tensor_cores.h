// The two products of attention on tensor cores, for 16-bit elements. A block of four warps holds a tile of rows; each
// warp has 16 M consecutive ones of them, against all kColumns rows of the other side, so that a row's scores lie in
// the four lanes of a quad. The fragment in which mma leaves two neighbouring 16x8 tiles of scores is the one in which
// it takes a 16x16 tile as its left operand: probabilities go from one product to the next without leaving registers.
// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

template <typename S, int D, int M, int C>
struct TensorCores {
    static constexpr int kWarps = 4;
    static constexpr int kThreads = kWarps * simt::kWarp;
    static constexpr int kRows = kWarps * M * 16;
    static constexpr int kColumns = C;
    static constexpr int kThreadRows = 2 * M;  // of the tile, in each thread
    static constexpr int kThreadColumns = C / 4;
    static constexpr int kThreadDepth = D / 4;
    static constexpr int kScratchBytes = 0;

    using Tile = SharedRows<S, D>;
    static constexpr int kGroup = Tile::kGroup;

    /// N 16x8 tiles side by side, M below each other; element (i, j) counts the rows and columns of this thread.
    template <int N>
    struct Fragments {
        float tiles[M][N][4];

        SIMT_DEVICE float& at(int i, int j) { return tiles[i / 2][j / 2][i % 2 * 2 + j % 2]; }
        SIMT_DEVICE void clear() {
            SIMT_UNROLL
            for (int m = 0; m < M; ++m) {
                SIMT_UNROLL
                for (int n = 0; n < N; ++n) {
                    SIMT_UNROLL
                    for (int e = 0; e < 4; ++e) {
                        tiles[m][n][e] = 0;
                    }
                }
            }
        }
    };
    using Scores = Fragments<C / 8>;
    using Output = Fragments<D / 8>;

    SIMT_DEVICE static int first_row_of_warp() { return simt::warp() * 16 * M; }
    /// Where row i and column j of this thread's scores lie in the block's tile.
    SIMT_DEVICE static int row(int i) { return first_row_of_warp() + i / 2 * 16 + i % 2 * 8 + simt::lane() / 4; }
    SIMT_DEVICE static int column(int j) { return j / 2 * 8 + simt::lane() % 4 * 2 + j % 2; }
    /// Whether this thread is the one to write what its rows' threads share.
    SIMT_DEVICE static bool leads_row() { return simt::lane() % 4 == 0; }

    SIMT_DEVICE static float row_max(float x) {
        x = simt::max(x, simt::shuffle_xor(x, 1));
        return simt::max(x, simt::shuffle_xor(x, 2));
    }
    SIMT_DEVICE static float row_sum(float x) {
        x += simt::shuffle_xor(x, 1);
        return x + simt::shuffle_xor(x, 2);
    }

    /// scores = a bT for the rows a of the block and kColumns rows b.
    SIMT_DEVICE static void multiply(Scores& scores, Tile a, Tile b) {
        const int lane = simt::lane();
        scores.clear();
        SIMT_UNROLL
        for (int k = 0; k < D / 16; ++k) {
            std::uint32_t left[M][4];
            SIMT_UNROLL
            for (int m = 0; m < M; ++m) {
                simt::load_matrix_x4(left[m], a.from(first_row_of_warp())
                                                  .from(m * 16)
                                                  .chunk(lane % 16, 2 * k / kGroup, 2 * k % kGroup + lane / 16));
            }
            SIMT_UNROLL
            for (int n = 0; n < C / 16; ++n) {
                std::uint32_t right[4];  // both halves of k for 8 rows, then for the next 8
                simt::load_matrix_x4(right, b.from(n * 16).chunk(lane / 16 * 8 + lane % 8, 2 * k / kGroup,
                                                                 2 * k % kGroup + lane / 8 % 2));
                add_pair(scores.tiles, left, right, n);
            }
        }
    }

    /// output += S(scores) b for kColumns rows b.
    SIMT_DEVICE static void accumulate(Output& output, Scores& scores, Tile b, std::byte* /*scratch*/) {
        const int lane = simt::lane();
        SIMT_UNROLL
        for (int k = 0; k < C / 16; ++k) {
            std::uint32_t left[M][4];
            SIMT_UNROLL
            for (int m = 0; m < M; ++m) {
                SIMT_UNROLL
                for (int e = 0; e < 4; ++e) {
                    const float* pair = scores.tiles[m][2 * k + e / 2] + e % 2 * 2;
                    left[m][e] = simt::pack2<S>(pair[0], pair[1]);
                }
            }
            SIMT_UNROLL
            for (int n = 0; n < D / 16; ++n) {
                std::uint32_t right[4];
                simt::load_matrix_x4_transposed(
                    right, b.from(k * 16).chunk(lane % 16, 2 * n / kGroup, 2 * n % kGroup + lane / 16));
                add_pair(output.tiles, left, right, n);
            }
        }
    }

    /// Rows of the block, rounded to S, each multiplied by its factor. Warps write rows of their own only.
    SIMT_DEVICE static void put(Tile to, Output& output, const float (&factors)[kThreadRows]) {
        SIMT_UNROLL
        for (int i = 0; i < kThreadRows; ++i) {
            SIMT_UNROLL
            for (int n = 0; n < D / 8; ++n) {
                const simt::Vector<S, 2> pair{{simt::from_float<S>(output.at(i, 2 * n) * factors[i]),
                                               simt::from_float<S>(output.at(i, 2 * n + 1) * factors[i])}};
                simt::store_vector(to.chunk(row(i), n) + simt::lane() % 4 * 2, pair);
            }
        }
    }

  private:
    /// Adds the products with 16 columns to tiles 2n and 2n + 1.
    template <int N>
    SIMT_DEVICE static void add_pair(float (&tiles)[M][N][4], const std::uint32_t (&left)[M][4],
                                     const std::uint32_t (&right)[4], int n) {
        const std::uint32_t low[2] = {right[0], right[1]};
        const std::uint32_t high[2] = {right[2], right[3]};
        SIMT_UNROLL
        for (int m = 0; m < M; ++m) {
            simt::mma_16x8x16<S>(tiles[m][2 * n], left[m], low);
            simt::mma_16x8x16<S>(tiles[m][2 * n + 1], left[m], high);
        }
    }
};

}  // namespace tessera::cuda
