// Vectors of floats as wide as the registers of the CPU that this is compiled for, and their loads and stores from
// float and bfloat16 memory. Loops run over `Full` vectors and one `Part` at the end that goes through the same
// operations: an element gets the same bits wherever it lies in a range.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/base/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::cpu {

#if defined(__AVX512F__)
inline constexpr std::int64_t kLanes = 16;
#elif defined(__AVX2__)
inline constexpr std::int64_t kLanes = 8;
#else
inline constexpr std::int64_t kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * 4)));
using IntVec = std::int32_t __attribute__((vector_size(kLanes * 4)));
using WordVec = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using HalfVec = std::uint16_t __attribute__((vector_size(kLanes * 2)));

/// How many lanes of a vector a load or store touches: all, or the first `count`.
struct Full {};
struct Part {
    int count;
};

[[nodiscard]] inline Vec broadcast(float x) {
#if defined(__AVX512F__)
    return _mm512_set1_ps(x);
#elif defined(__AVX2__)
    return _mm256_set1_ps(x);
#else
    return Vec{x, x, x, x};
#endif
}

/// a * b + c, rounded once where the CPU can.
[[nodiscard]] inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/// The larger one; b where either is NaN.
[[nodiscard]] inline Vec max(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}

/// The smaller one; b where either is NaN.
[[nodiscard]] inline Vec min(Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

[[nodiscard]] inline Vec sqrt(Vec x) {
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
    return _mm256_sqrt_ps(x);
#else
    Vec root;
    for (int i = 0; i < kLanes; ++i) {
        root[i] = __builtin_sqrtf(x[i]);
    }
    return root;
#endif
}

/// 0, 1, 2, ...
[[nodiscard]] inline IntVec lane_numbers() {
    IntVec lanes{};
    for (int i = 0; i < kLanes; ++i) {
        lanes[i] = i;
    }
    return lanes;
}

[[nodiscard]] inline Vec widen(HalfVec half) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(half)), 16));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half)), 16));
#else
    return reinterpret_cast<Vec>(__builtin_convertvector(half, WordVec) << 16);
#endif
}

/// The lower halves of words whose upper halves are 0.
[[nodiscard]] inline HalfVec lower_halves(WordVec words) {
#if defined(__AVX512F__)
    return reinterpret_cast<HalfVec>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#elif defined(__AVX2__)
    const auto all = reinterpret_cast<__m256i>(words);
    return reinterpret_cast<HalfVec>(_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#else
    return __builtin_convertvector(words, HalfVec);
#endif
}

/// To bfloat16, nearest, ties to even; NaN stays NaN: bfloat16::round lane by lane.
[[nodiscard]] inline HalfVec narrow_to_bf16(Vec x) {
    const WordVec word = reinterpret_cast<WordVec>(x);
    const WordVec rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const WordVec nan = (word >> 16) | 0x40u;
    return lower_halves(x != x ? nan : rounded);
}

[[nodiscard]] inline Vec load(const float* from, Full /*all*/ = {}) {
    Vec x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

[[nodiscard]] inline Vec load(const bfloat16* from, Full /*all*/ = {}) {
    HalfVec half;
    std::memcpy(&half, from, sizeof(half));
    return widen(half);
}

inline void store(float* to, Vec x, Full /*all*/ = {}) {
    std::memcpy(to, &x, sizeof(x));
}

inline void store(bfloat16* to, Vec x, Full /*all*/ = {}) {
    const HalfVec half = narrow_to_bf16(x);
    std::memcpy(static_cast<void*>(to), &half, sizeof(half));
}

/// Lanes beyond the part are `fill`.
template <typename T>
[[nodiscard]] inline Vec load(const T* from, Part part, float fill = 0) {
    T lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        lanes[i] = i < part.count ? from[i] : T(fill);
    }
    return load(lanes);
}

template <typename T>
inline void store(T* to, Vec x, Part part) {
    T lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < part.count; ++i) {
        to[i] = lanes[i];
    }
}

/// Rounded to the precision of T.
template <typename T>
[[nodiscard]] inline Vec round_to(Vec x) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        return widen(narrow_to_bf16(x));
    } else {
        return x;
    }
}

/// Calls body(i, lanes) for i = 0, kLanes, ... below `count`, with Full lanes and at last a Part.
template <typename Body>
inline void for_vectors(std::int64_t count, Body&& body) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        body(i, Full{});
    }
    if (i < count) {
        body(i, Part{static_cast<int>(count - i)});
    }
}

/// Sum of the lanes, always in the same order.
[[nodiscard]] inline double sum_lanes(Vec x) {
    double sum = 0;
    for (int i = 0; i < kLanes; ++i) {
        sum += static_cast<double>(x[i]);
    }
    return sum;
}

[[nodiscard]] inline float max_lane(Vec x) {
    float largest = x[0];
    for (int i = 1; i < kLanes; ++i) {
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

}  // namespace tessera::cpu
