// What the reference operations are written in: rows of a typed matrix, and the accumulation type of a storage type.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "core/base/view.h"

namespace tessera::reference {

/// A, in which the reference computes when it stores S.
template <typename S>
using Accumulate = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// Row r begins `r * stride` elements behind `data`.
template <typename T>
struct Rows {
    T* data = nullptr;
    std::int64_t stride = 0;

    T* operator[](std::int64_t row) const { return data + row * stride; }
    // NOLINTNEXTLINE(google-explicit-constructor): writable rows are readable ones
    operator Rows<const T>() const { return {data, stride}; }
};

/// The rows of `m`, whose dtype must be T's.
template <typename T>
[[nodiscard]] Rows<T> rows_of(Matrix m) {
    return {m.as<T>(), m.stride};
}
template <typename T>
[[nodiscard]] Rows<const T> rows_of(ConstMatrix m) {
    return {m.as<T>(), m.stride};
}

/// Sum of a[i] * b[i]. The compiler may split it over the lanes of a vector, always in the same way.
template <typename A, typename X, typename Y>
[[nodiscard]] A dot(const X* a, const Y* b, std::int64_t count) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) {
        sum += static_cast<A>(a[i]) * static_cast<A>(b[i]);
    }
    return sum;
}

/// out[c] = sum over r of weights[r] * rows[r][c], for `count` rows of `cols` columns, r ascending.
template <typename S, typename W>
void weighted_row_sum(S* out, const W* weights, Rows<const S> rows, std::int64_t count, std::int64_t cols) {
    using A = Accumulate<S>;
    constexpr std::int64_t kBlock = 64;
    for (std::int64_t first = 0; first < cols; first += kBlock) {
        const std::int64_t width = std::min(kBlock, cols - first);
        std::array<A, kBlock> sum{};
        for (std::int64_t r = 0; r < count; ++r) {
            const A weight = static_cast<A>(weights[r]);
            const S* row = rows[r] + first;
            for (std::int64_t c = 0; c < width; ++c) {
                sum[c] += weight * static_cast<A>(row[c]);
            }
        }
        for (std::int64_t c = 0; c < width; ++c) {
            out[first + c] = static_cast<S>(sum[c]);
        }
    }
}

/// sum[i] += weight * x[i].
template <typename A, typename S>
void add_scaled(A* sum, A weight, const S* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        sum[i] += weight * static_cast<A>(x[i]);
    }
}

}  // namespace tessera::reference
