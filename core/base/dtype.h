// Element types of tensors, and bfloat16 and float16 as storage types.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class DType : std::uint8_t { f64, f32, bf16, f16 };

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t size_of(DType dtype) {
    return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

[[nodiscard]] constexpr std::string_view name_of(DType dtype) {
    switch (dtype) {
        case DType::f64: return "f64";
        case DType::f32: return "f32";
        case DType::bf16: return "bf16";
        case DType::f16: return "f16";
    }
    return "?";
}

/// The upper half of a float: 8 bits of exponent, 7 of mantissa. Conversion rounds to nearest, ties to even.
struct bfloat16 {
    std::uint16_t bits = 0;

    bfloat16() = default;
    explicit bfloat16(float value) : bits(round(value)) {}
    explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

    [[nodiscard]] static std::uint16_t round(float value) {
        const auto word = std::bit_cast<std::uint32_t>(value);
        // A NaN whose payload lies in the lower half must not round to infinity.
        const std::uint32_t nan = (word >> 16) | 0x40u;
        const std::uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
        return static_cast<std::uint16_t>((word & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
};

/// IEEE binary16. Conversion from float rounds to nearest, ties to even; values beyond 65504 become infinite.
struct float16 {
    std::uint16_t bits = 0;

    float16() = default;
    explicit float16(float value);
    explicit operator float() const;
};

template <typename T>
inline constexpr std::optional<DType> dtype_of = std::nullopt;
template <>
inline constexpr std::optional<DType> dtype_of<double> = DType::f64;
template <>
inline constexpr std::optional<DType> dtype_of<float> = DType::f32;
template <>
inline constexpr std::optional<DType> dtype_of<bfloat16> = DType::bf16;
template <>
inline constexpr std::optional<DType> dtype_of<float16> = DType::f16;

/// Converts `count` contiguous elements. `from` and `to` may not overlap unless they are equal and of one dtype.
void convert(DType to_dtype, void* to, DType from_dtype, const void* from, std::int64_t count);

}  // namespace tessera
