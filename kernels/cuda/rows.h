// Matrices as kernels see them: rows of a typed pointer; and groups of neighbouring elements that are read and written
// as floats, by accesses of up to 16 bytes where the addresses allow it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/base/view.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

/// Row r begins `r * stride` elements behind `data`; data may be null where an operand is left out.
template <typename T>
struct Rows {
    T* data = nullptr;
    std::int64_t stride = 0;

    SIMT_DEVICE T* operator[](std::int64_t row) const { return data + row * stride; }
};

/// The rows of `m`, whose dtype must be T's; null rows for an empty matrix.
template <typename T>
[[nodiscard]] Rows<T> rows_of(Matrix m) {
    return {m.empty() ? nullptr : m.as<T>(), m.stride};
}
template <typename T>
[[nodiscard]] Rows<const T> rows_of(ConstMatrix m) {
    return {m.empty() ? nullptr : m.as<T>(), m.stride};
}

/// Elements of T that one access moves when N neighbours are wanted.
template <typename T, int N>
inline constexpr int kAccess = static_cast<int>(sizeof(T)) * N > 16 ? 16 / static_cast<int>(sizeof(T)) : N;

/// Whether every group of N elements that begins at a multiple of N in a row can be accessed as vectors.
template <int N>
[[nodiscard]] inline bool aligned(ConstMatrix m) {
    const std::int64_t bytes = std::min<std::int64_t>(16, N * size_of(m.dtype));
    return m.empty() || (reinterpret_cast<std::uintptr_t>(m.data) % static_cast<std::uintptr_t>(bytes) == 0 &&
                         (m.rows == 1 || m.stride * size_of(m.dtype) % bytes == 0));
}
template <int N, typename... Matrices>
[[nodiscard]] bool all_aligned(const Matrices&... matrices) {
    return (aligned<N>(matrices) && ...);
}

/// Whether matrices of one shape can be walked as one long row.
template <typename... Matrices>
[[nodiscard]] bool all_contiguous(const Matrices&... matrices) {
    return (matrices.contiguous() && ...);
}

/// N elements at `from`, aligned to N elements or 16 bytes; any T whose elements are only moved.
template <int N, typename T>
SIMT_DEVICE void load_elements(T (&to)[N], const T* from) {
    constexpr int kWidth = kAccess<T, N>;
    if constexpr (N == 1) {
        to[0] = *from;
    } else {
        for (int i = 0; i < N; i += kWidth) {
            const simt::Vector<T, kWidth> part = simt::load_vector<kWidth>(from + i);
            for (int j = 0; j < kWidth; ++j) {
                to[i + j] = part.v[j];
            }
        }
    }
}
template <int N, typename T>
SIMT_DEVICE void store_elements(T* to, const T (&from)[N]) {
    constexpr int kWidth = kAccess<T, N>;
    if constexpr (N == 1) {
        *to = from[0];
    } else {
        for (int i = 0; i < N; i += kWidth) {
            simt::Vector<T, kWidth> part;
            for (int j = 0; j < kWidth; ++j) {
                part.v[j] = from[i + j];
            }
            simt::store_vector(to + i, part);
        }
    }
}

/// The same as floats.
template <int N, typename S>
SIMT_DEVICE void load_floats(float (&to)[N], const S* from) {
    S elements[N];
    load_elements(elements, from);
    for (int i = 0; i < N; ++i) {
        to[i] = simt::to_float(elements[i]);
    }
}
template <int N, typename S>
SIMT_DEVICE void store_floats(S* to, const float (&from)[N]) {
    S elements[N];
    for (int i = 0; i < N; ++i) {
        elements[i] = simt::from_float<S>(from[i]);
    }
    store_elements(to, elements);
}

/// The first `count` of N elements; the others are `otherwise`. Vectors are used where `vectors` allows it.
template <int N, typename T>
SIMT_DEVICE void load_some(T (&to)[N], const T* from, std::int64_t count, bool vectors, T otherwise) {
    if (vectors && count >= N) {
        load_elements(to, from);
    } else {
        for (int i = 0; i < N; ++i) {
            to[i] = i < count ? from[i] : otherwise;
        }
    }
}
template <int N, typename S>
SIMT_DEVICE void store_some(S* to, const float (&from)[N], std::int64_t count, bool vectors) {
    if (vectors && count >= N) {
        store_floats(to, from);
    } else {
        for (int i = 0; i < N; ++i) {
            if (i < count) {
                to[i] = simt::from_float<S>(from[i]);
            }
        }
    }
}

template <typename S>
SIMT_DEVICE float round_to(float x) {
    return simt::to_float(simt::from_float<S>(x));
}

}  // namespace tessera::cuda
