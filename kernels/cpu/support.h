// What every kernel of this folder needs: dispatch on the storage type, slices of the workspace, and loops over rows
// and pieces of rows in parallel. Arguments are checked before (kernels/check_arguments.h).
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/checked.h"
#include "core/base/view.h"

namespace tessera::cpu {

/// Calls body(S{}) with S the type of `storage`: float or bfloat16.
template <typename Body>
void with_storage(DType storage, Body&& body) {
    if (storage == DType::f32) {
        body(float{});
    } else if (storage == DType::bf16) {
        body(bfloat16{});
    } else {
        fail(ExitCode::internal, "the CPU kernels store f32 or bf16, not {}", name_of(storage));
    }
}

inline constexpr std::int64_t kAlignment = 64;

/// Bytes that `count` elements of T take in a workspace.
template <typename T>
[[nodiscard]] std::int64_t workspace_of(std::int64_t count) {
    return round_up(checked_mul(count, sizeof(T), "a workspace of the CPU kernels"), kAlignment);
}

/// Hands out slices of the workspace from its beginning.
class Scratch {
  public:
    explicit Scratch(std::span<std::byte> memory) : memory_(memory) {}

    template <typename T>
    [[nodiscard]] T* take(std::int64_t count) {
        const std::int64_t bytes = workspace_of<T>(count);
        if (bytes > static_cast<std::int64_t>(memory_.size())) {
            fail(ExitCode::internal,
                 "a CPU kernel needs {} bytes of workspace where {} are left: the call exceeds the "
                 "limits that the workspace was made for",
                 bytes, memory_.size());
        }
        T* slice = reinterpret_cast<T*>(memory_.data());
        memory_ = memory_.subspan(static_cast<std::size_t>(bytes));
        return slice;
    }

    [[nodiscard]] std::span<std::byte> rest() const { return memory_; }

  private:
    std::span<std::byte> memory_;
};

/// Work below this many elements is not worth waking threads for.
inline constexpr std::int64_t kParallelElements = 16384;

/// body(i) for i in [0, count), in parallel where `elements` (the size of all the work) pays for it.
template <typename Body>
void parallel_for(int threads, std::int64_t count, std::int64_t elements, const Body& body) {
#pragma omp parallel for schedule(static) num_threads(threads) if (elements >= kParallelElements && count > 1)
    for (std::int64_t i = 0; i < count; ++i) {
        body(i);
    }
}

/// body(row, first column, columns) over pieces that cover [rows, cols], in parallel.
template <typename Body>
void parallel_pieces(int threads, std::int64_t rows, std::int64_t cols, const Body& body) {
    constexpr std::int64_t kPiece = 4096;
    const std::int64_t pieces = ceil_div(cols, kPiece);
    parallel_for(threads, rows * pieces, rows * cols, [&](std::int64_t i) {
        const std::int64_t first = i % pieces * kPiece;
        body(i / pieces, first, std::min(kPiece, cols - first));
    });
}

/// Whether a matrix can be walked as one long row.
template <typename... Matrices>
[[nodiscard]] bool all_contiguous(const Matrices&... matrices) {
    return (matrices.contiguous() && ...);
}

}  // namespace tessera::cpu
