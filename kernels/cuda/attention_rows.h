// Rows of one head: where they lie in device memory, how they lie in shared memory, and the way between the two.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/base/view.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

/// Elements of S in an access of 16 bytes.
template <typename S>
inline constexpr int kChunk = 16 / static_cast<int>(sizeof(S));

/// The columns of one head in a matrix of tokens in device memory, from some row on. S may be const.
template <typename S>
struct HeadRows {
    S* data;
    std::int64_t stride;
    int columns;   // of a head
    bool aligned;  // to 16 bytes: every row of every head

    SIMT_DEVICE HeadRows at(std::int64_t row, std::int64_t head) const {
        return {data + row * stride + head * columns, stride, columns, aligned};
    }
};

/// Row 0 of head 0 of a matrix [T, heads * head_dim]. S may be const.
template <typename S, typename Byte>
[[nodiscard]] HeadRows<S> head_rows(BasicMatrix<Byte> matrix, std::int64_t head_dim) {
    constexpr std::int64_t kElements = kChunk<S>;
    const bool aligned = reinterpret_cast<std::uintptr_t>(matrix.data) % 16 == 0 && matrix.stride % kElements == 0 &&
                         head_dim % kElements == 0;
    return {matrix.template as<std::remove_const_t<S>>(), matrix.stride, static_cast<int>(head_dim), aligned};
}

/// Rows of D elements in shared memory. The 16-byte chunks of a row change places by an exclusive or with its number,
/// such that eight consecutive rows have a chunk of one number in eight different places modulo 128 bytes: neither the
/// reads of ldmatrix nor accesses along a row have bank conflicts.
template <typename S, int D>
struct SharedRows {
    static constexpr int kChunks = D / kChunk<S>;
    static constexpr int kGroup = kChunks % 8 == 0 ? 8 : 4;  // chunks change places within a group
    static_assert(kChunks % kGroup == 0);

    S* data;

    /// Chunk `number` of group `group`.
    SIMT_DEVICE S* chunk(int row, int group, int number) const {
        // Where a row is an odd number of 64 bytes, two rows share what the chunks of one number differ in.
        const int turn = kGroup == 8 ? row & 7 : (row >> 1) & 3;
        return data + row * D + (group * kGroup + (number ^ turn)) * kChunk<S>;
    }
    /// The rows from a multiple of eight on. Where that is known when compiling, no other address is computed for it.
    SIMT_DEVICE SharedRows from(int row) const { return {data + row * D}; }
    SIMT_DEVICE S* chunk(int row, int number) const { return chunk(row, number / kGroup, number % kGroup); }
};

/// Bytes of a row in shared memory.
template <typename S, int D>
inline constexpr int kSharedRowBytes = D* static_cast<int>(sizeof(S));

/// Calls work(row, group) for what one of kThreads threads moves of kRows rows: chunk thread() % kGroup of every group,
/// and rows so far apart that a chunk's place is the same in each.
template <int kRows, int kThreads, typename Shared, typename Work>
SIMT_DEVICE void for_own_chunks(const Work& work) {
    constexpr int kStep = kThreads / Shared::kGroup;
    static_assert(kStep % 8 == 0);
    const int first = simt::thread() / Shared::kGroup;
    SIMT_UNROLL
    for (int step = 0; step < (kRows + kStep - 1) / kStep; ++step) {
        if (kRows % kStep == 0 || first + step * kStep < kRows) {
            SIMT_UNROLL
            for (int group = 0; group < Shared::kChunks / Shared::kGroup; ++group) {
                work(first + step * kStep, group);
            }
        }
    }
}

/// Begins to copy the first `valid` of kRows rows. Rows beyond, and columns beyond those of the head, become 0. All
/// kThreads threads of the block call it; the rows are there after wait_copies and a barrier.
template <int kRows, int kThreads, typename S, int D>
SIMT_DEVICE void load_rows(SharedRows<S, D> to, HeadRows<const S> from, int valid) {
    using Shared = SharedRows<S, D>;
    const int number = simt::thread() % Shared::kGroup;
    if (from.aligned) {
        for_own_chunks<kRows, kThreads, Shared>([&](int row, int group) {
            const int column = (group * Shared::kGroup + number) * kChunk<S>;
            const bool inside = row < valid && column < from.columns;
            simt::copy_async16(to.chunk(row, group, number), from.data + row * from.stride + column, inside);
        });
        return;
    }
    // Not unrolled: what the compiler would keep for it would not leave enough registers for the products.
    SIMT_LOOP
    for (int n = simt::thread(); n < kRows * D; n += kThreads) {
        const int row = n / D;
        const int column = n % D;
        const bool inside = row < valid && column < from.columns;
        S* place = to.chunk(row, column / kChunk<S>) + column % kChunk<S>;
        *place = inside ? from.data[row * from.stride + column] : simt::from_float<S>(0);
    }
}

/// Copies the first `valid` of kRows rows from shared memory, where a barrier has made them visible.
template <int kRows, int kThreads, typename S, int D>
SIMT_DEVICE void store_rows(HeadRows<S> to, SharedRows<S, D> from, int valid) {
    using Shared = SharedRows<S, D>;
    const int number = simt::thread() % Shared::kGroup;
    for_own_chunks<kRows, kThreads, Shared>([&](int row, int group) {
        const int column = (group * Shared::kGroup + number) * kChunk<S>;
        if (row >= valid || column >= to.columns) {
            return;
        }
        const auto elements = simt::load_vector<kChunk<S>>(from.chunk(row, group, number));
        S* target = to.data + row * to.stride + column;
        if (to.aligned) {
            simt::store_vector(target, elements);
            return;
        }
        SIMT_UNROLL
        for (int e = 0; e < kChunk<S>; ++e) {
            if (column + e < to.columns) {
                target[e] = elements.v[e];
            }
        }
    });
}

}  // namespace tessera::cuda
