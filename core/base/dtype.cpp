#include "core/base/dtype.h"

#include <cmath>
#include <cstring>

#include "core/base/error.h"

namespace tessera {

float16::float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        bits = static_cast<std::uint16_t>(sign | 0x7e00u);
        return;
    }
    if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
        bits = static_cast<std::uint16_t>(sign | 0x7c00u);
        return;
    }
    if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
        const float scaled = std::bit_cast<float>(magnitude) * 16777216.0F;
        bits = static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(scaled)));
        return;
    }
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13));
}

float16::operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0) {
        const float value = static_cast<float>(mantissa) * 0x1p-24F;
        return sign != 0 ? -value : value;
    }
    const std::uint32_t high = exponent == 31 ? 255u : exponent + 112u;
    return std::bit_cast<float>(sign | (high << 23) | (mantissa << 13));
}

namespace {

template <typename To, typename From>
void convert_elements(To* to, const From* from, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<To, double> || std::is_same_v<To, float>) {
            if constexpr (std::is_same_v<From, double>) {
                to[i] = static_cast<To>(from[i]);
            } else {
                to[i] = static_cast<To>(static_cast<float>(from[i]));
            }
        } else {
            to[i] = To(static_cast<float>(from[i]));
        }
    }
}

template <typename To>
void convert_to(To* to, DType from_dtype, const void* from, std::int64_t count) {
    switch (from_dtype) {
        case DType::f64: convert_elements(to, static_cast<const double*>(from), count); return;
        case DType::f32: convert_elements(to, static_cast<const float*>(from), count); return;
        case DType::bf16: convert_elements(to, static_cast<const bfloat16*>(from), count); return;
        case DType::f16: convert_elements(to, static_cast<const float16*>(from), count); return;
    }
}

}  // namespace

void convert(DType to_dtype, void* to, DType from_dtype, const void* from, std::int64_t count) {
    if (to_dtype == from_dtype) {
        if (to != from && count > 0) {
            std::memcpy(to, from, static_cast<std::size_t>(count * size_of(to_dtype)));
        }
        return;
    }
    switch (to_dtype) {
        case DType::f64: convert_to(static_cast<double*>(to), from_dtype, from, count); return;
        case DType::f32: convert_to(static_cast<float*>(to), from_dtype, from, count); return;
        case DType::bf16: convert_to(static_cast<bfloat16*>(to), from_dtype, from, count); return;
        case DType::f16: convert_to(static_cast<float16*>(to), from_dtype, from, count); return;
    }
}

}  // namespace tessera
