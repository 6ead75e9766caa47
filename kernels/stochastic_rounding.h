// Stochastic rounding of floats to bf16, for host and device.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/mix64.h"

namespace tessera {

/// Rounding of a float to one of the two bf16 around it, upwards in size with the probability with which it lies
/// between them. Random bits are a function of (key, step, element) only, however elements are shared out.
struct StochasticRounding {
    std::uint64_t key = 0;  // another one for each parameter
    std::int64_t step = 0;
    std::int64_t first = 0;  // number, among all elements of the parameter, of the first one of a call

    /// The bits of element first + i as bf16, given those of the float: 16 random bits are added below the 16 that are
    /// kept. Infinities stay as they are, and NaNs are NaNs.
    [[nodiscard]] constexpr std::uint16_t round(std::uint32_t word, std::int64_t i) const {
        if ((word & 0x7fffffffu) > 0x7f800000u) {
            return static_cast<std::uint16_t>((word >> 16) | 0x40u);
        }
        const std::uint64_t state = mix64(key ^ mix64(static_cast<std::uint64_t>(step)));
        const auto random =
            static_cast<std::uint32_t>(mix64(state ^ mix64(static_cast<std::uint64_t>(first + i))) >> 48);
        return static_cast<std::uint16_t>((word + random) >> 16);
    }
};

}  // namespace tessera
