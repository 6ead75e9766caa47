// Views of matrices in raw memory. A view owns nothing; it is valid as long as the memory behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/dtype.h"
#include "core/base/error.h"

namespace tessera {

/// Row-major matrix: element (r, c) lies `r * stride + c` elements behind `data`. A vector is a matrix of one row.
/// `Byte` is std::byte or const std::byte.
template <typename Byte>
struct BasicMatrix {
    Byte* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;  // elements from one row to the next; >= cols

    BasicMatrix() = default;
    BasicMatrix(Byte* memory, DType type, std::int64_t row_count, std::int64_t col_count)
        : BasicMatrix(memory, type, row_count, col_count, col_count) {}
    BasicMatrix(Byte* memory, DType type, std::int64_t row_count, std::int64_t col_count, std::int64_t row_stride)
        : data(memory), dtype(type), rows(row_count), cols(col_count), stride(row_stride) {}

    // NOLINTNEXTLINE(google-explicit-constructor): a writable view is a readable one
    operator BasicMatrix<const std::byte>() const { return {data, dtype, rows, cols, stride}; }

    [[nodiscard]] bool empty() const { return data == nullptr || rows == 0 || cols == 0; }
    [[nodiscard]] bool contiguous() const { return stride == cols || rows <= 1; }
    [[nodiscard]] std::int64_t elements() const { return rows * cols; }

    /// Rows [first, first + count).
    [[nodiscard]] BasicMatrix row_range(std::int64_t first, std::int64_t count) const {
        return {data + first * stride * size_of(dtype), dtype, count, cols, stride};
    }
    /// Columns [first, first + count).
    [[nodiscard]] BasicMatrix col_range(std::int64_t first, std::int64_t count) const {
        return {data + first * size_of(dtype), dtype, rows, count, stride};
    }

    /// Pointer to the first element; T must be the view's dtype.
    template <typename T>
    [[nodiscard]] auto* as() const {
        static_assert(dtype_of<T>.has_value());
        if (dtype != *dtype_of<T>) {
            fail(ExitCode::internal, "a view of {} was read as {}", name_of(dtype), name_of(*dtype_of<T>));
        }
        if constexpr (std::is_const_v<Byte>) {
            return reinterpret_cast<const T*>(data);
        } else {
            return reinterpret_cast<T*>(data);
        }
    }
};

using Matrix = BasicMatrix<std::byte>;
using ConstMatrix = BasicMatrix<const std::byte>;

}  // namespace tessera
