// Statistics of the differences of two lists of numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera {

/// Values of equal bits differ by 0, also where they are not finite; other differences that are not finite are counted
/// apart and enter no number.
struct Difference {
    std::int64_t count = 0;
    std::int64_t other_bits = 0;  // values whose bits differ
    std::int64_t non_finite = 0;
    double largest = 0;
    std::int64_t largest_at = -1;  // -1: all differences are 0
    double sum = 0;                // of b - a
    double absolute = 0;           // sum of |b - a|
    double squares = 0;            // sum of (b - a)^2
    double first_squares = 0;      // sum of a^2, where the difference is finite

    void add(float a, float b, std::int64_t at) {
        ++count;
        const double first = static_cast<double>(a);
        if (std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b)) {
            first_squares += std::isfinite(first) ? first * first : 0;
            return;
        }
        ++other_bits;
        const double difference = static_cast<double>(b) - first;
        if (!std::isfinite(difference)) {
            ++non_finite;
            return;
        }
        if (std::abs(difference) > largest) {
            largest = std::abs(difference);
            largest_at = at;
        }
        sum += difference;
        absolute += std::abs(difference);
        squares += difference * difference;
        first_squares += first * first;
    }

    /// Adds the numbers of another list. `largest_at` stays that of this one.
    void merge(const Difference& other) {
        count += other.count;
        other_bits += other.other_bits;
        non_finite += other.non_finite;
        largest = std::max(largest, other.largest);
        sum += other.sum;
        absolute += other.absolute;
        squares += other.squares;
        first_squares += other.first_squares;
    }

    [[nodiscard]] std::int64_t finite() const { return count - non_finite; }
    [[nodiscard]] double mean() const { return finite() == 0 ? 0 : sum / static_cast<double>(finite()); }
    [[nodiscard]] double mean_absolute() const { return finite() == 0 ? 0 : absolute / static_cast<double>(finite()); }
    [[nodiscard]] double rms() const { return finite() == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite())); }
    /// |b - a| / |a| of the lists as vectors; not a number where only a is 0.
    [[nodiscard]] double relative() const { return squares == 0 ? 0 : std::sqrt(squares / first_squares); }
};

}  // namespace tessera
