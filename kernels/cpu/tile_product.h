// Products of small tiles that lie in the caches, for attention: rows of C are built in registers from broadcast
// elements of A and vectors of B.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace tessera::cpu {

/// Rows of C that a kernel keeps in registers, two vectors each: with the vectors of B and one element of A they fill
/// the 16 (AVX-512: 32) registers.
inline constexpr int kProductRows = kLanes == 16 ? 12 : 6;

/// C[kRows, kVecs * kLanes] = (or, where kAccumulate, +=) A B over `depth`. A's element (r, d) is a[r * lda + d], or
/// a[d * lda + r] where kTransposed.
template <int kRows, int kVecs, bool kTransposed, bool kAccumulate>
inline void product_kernel(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b,
                           std::int64_t ldb, std::int64_t depth) {
    Vec sums[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) {
            sums[r][v] = kAccumulate ? load(c + r * ldc + v * kLanes) : Vec{};
        }
    }
    for (std::int64_t d = 0; d < depth; ++d) {
        Vec row[kVecs];
        for (int v = 0; v < kVecs; ++v) {
            row[v] = load(b + d * ldb + v * kLanes);
        }
        for (int r = 0; r < kRows; ++r) {
            const Vec element = broadcast(kTransposed ? a[d * lda + r] : a[r * lda + d]);
            for (int v = 0; v < kVecs; ++v) {
                sums[r][v] = fma(element, row[v], sums[r][v]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) {
            store(c + r * ldc + v * kLanes, sums[r][v]);
        }
    }
}

/// As many kernels of kRows rows as fit in `rows`, and smaller ones for the rest.
template <int kRows, int kVecs, bool kTransposed, bool kAccumulate>
inline void product_rows(float* c, std::int64_t ldc, std::int64_t rows, const float* a, std::int64_t lda,
                         const float* b, std::int64_t ldb, std::int64_t depth) {
    while (rows >= kRows) {
        product_kernel<kRows, kVecs, kTransposed, kAccumulate>(c, ldc, a, lda, b, ldb, depth);
        c += kRows * ldc;
        a += kTransposed ? kRows : kRows * lda;
        rows -= kRows;
    }
    if constexpr (kRows > 1) {
        constexpr int kFewer = kRows > 8 ? 8 : kRows > 4 ? 4 : kRows / 2;
        product_rows<kFewer, kVecs, kTransposed, kAccumulate>(c, ldc, rows, a, lda, b, ldb, depth);
    }
}

/// C[rows, cols] (+)= A B with A [rows, depth] or, where kTransposed, stored as [depth, rows]; B [depth, cols]. `cols`
/// is a multiple of kLanes. Sums run over `depth` in order.
template <bool kTransposed, bool kAccumulate>
inline void tile_product(float* c, std::int64_t ldc, std::int64_t rows, std::int64_t cols, std::int64_t depth,
                         const float* a, std::int64_t lda, const float* b, std::int64_t ldb) {
    std::int64_t col = 0;
    for (; col + 2 * kLanes <= cols; col += 2 * kLanes) {
        product_rows<kProductRows, 2, kTransposed, kAccumulate>(c + col, ldc, rows, a, lda, b + col, ldb, depth);
    }
    if (col < cols) {
        product_rows<kProductRows, 1, kTransposed, kAccumulate>(c + col, ldc, rows, a, lda, b + col, ldb, depth);
    }
}

/// Copies rows [rows, cols] of S to floats with `padded` columns, zeros beyond cols.
template <typename S>
inline void load_rows(float* to, std::int64_t padded, const S* from, std::int64_t stride, std::int64_t rows,
                      std::int64_t cols) {
    for (std::int64_t r = 0; r < rows; ++r) {
        float* row = to + r * padded;
        for_vectors(cols, [&](std::int64_t c, auto lanes) { store(row + c, load(from + r * stride + c, lanes)); });
    }
}

/// Writes the transpose of from [rows, cols] as [cols, padded] floats, zeros beyond `rows`.
inline void transpose(float* to, std::int64_t padded, const float* from, std::int64_t stride, std::int64_t rows,
                      std::int64_t cols) {
    constexpr std::int64_t kBlock = 8;
    for (std::int64_t first = 0; first < cols; first += kBlock) {
        const std::int64_t last = first + kBlock < cols ? first + kBlock : cols;
        for (std::int64_t r = 0; r < padded; ++r) {
            for (std::int64_t c = first; c < last; ++c) {
                to[c * padded + r] = r < rows ? from[r * stride + c] : 0.0F;
            }
        }
    }
}

}  // namespace tessera::cpu
