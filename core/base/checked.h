// Checked arithmetic on sizes. Counts of elements and bytes are int64; narrowing is checked.
#pragma once

#include <concepts>
#include <cstdint>
#include <utility>

#include "core/base/error.h"

namespace tessera {

/// `value` as To; throws where To cannot hold it.
template <std::integral To, std::integral From>
[[nodiscard]] constexpr To narrow(From value) {
    if (!std::in_range<To>(value)) {
        fail(ExitCode::internal, "a size of {} does not fit its type", value);
    }
    return static_cast<To>(value);
}

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return a / b + (a % b != 0 ? 1 : 0);
}

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
    return ceil_div(value, multiple) * multiple;
}

/// a * b; throws with `what` where the product exceeds 63 bits. Both must be >= 0.
[[nodiscard]] inline std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* what) {
    std::int64_t product = 0;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) {
        fail(ExitCode::bad_data, "{}: {} x {} is too large", what, a, b);
    }
    return product;
}

/// a + b; throws with `what` where the sum exceeds 63 bits. Both must be >= 0.
[[nodiscard]] inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what) {
    std::int64_t sum = 0;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) {
        fail(ExitCode::bad_data, "{}: {} + {} is too large", what, a, b);
    }
    return sum;
}

}  // namespace tessera
