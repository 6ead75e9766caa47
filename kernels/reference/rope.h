// Rotary embedding of the reference.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/reference/rows.h"

namespace tessera::reference {

/// Turns the pairs (i, i + D / 2) of every head of x [tokens, heads * D] by the angle of (positions[t], i); back where
/// `inverse`. cos, sin [positions, D / 2].
template <typename S>
void rope(Rows<S> x, Rows<const Accumulate<S>> cos, Rows<const Accumulate<S>> sin,
          std::span<const std::int32_t> positions, std::int64_t heads, std::int64_t head_dim, bool inverse) {
    using A = Accumulate<S>;
    const std::int64_t half = head_dim / 2;
    const auto tokens = static_cast<std::int64_t>(positions.size());
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t) {
        const A* c = cos[positions[t]];
        const A* s = sin[positions[t]];
        for (std::int64_t h = 0; h < heads; ++h) {
            S* low = x[t] + h * head_dim;
            S* high = low + half;
            for (std::int64_t i = 0; i < half; ++i) {
                const A a = static_cast<A>(low[i]);
                const A b = static_cast<A>(high[i]);
                const A turn = inverse ? -s[i] : s[i];
                low[i] = static_cast<S>(a * c[i] - b * turn);
                high[i] = static_cast<S>(b * c[i] + a * turn);
            }
        }
    }
}

}  // namespace tessera::reference
