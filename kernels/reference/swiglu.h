// SwiGLU of the reference.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/reference/rows.h"

namespace tessera::reference {

template <typename A>
[[nodiscard]] A sigmoid(A x) {
    return 1 / (1 + std::exp(-x));
}

/// act = silu(gate) * up; act [tokens, width], gate_up [tokens, 2 width].
template <typename S>
void swiglu_forward(Rows<S> act, Rows<const S> gate_up, std::int64_t tokens, std::int64_t width) {
    using A = Accumulate<S>;
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
            const A gate = static_cast<A>(gate_up[t][i]);
            const A up = static_cast<A>(gate_up[t][width + i]);
            act[t][i] = static_cast<S>(gate * sigmoid(gate) * up);
        }
    }
}

/// dgate = dact * up * silu'(gate), dup = dact * silu(gate). dgate_up may be gate_up.
template <typename S>
void swiglu_backward(Rows<S> dgate_up, Rows<const S> dact, Rows<const S> gate_up, std::int64_t tokens,
                     std::int64_t width) {
    using A = Accumulate<S>;
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < width; ++i) {
            const A gate = static_cast<A>(gate_up[t][i]);
            const A up = static_cast<A>(gate_up[t][width + i]);
            const A gradient = static_cast<A>(dact[t][i]);
            const A s = sigmoid(gate);
            dgate_up[t][i] = static_cast<S>(gradient * up * (s * (1 + gate * (1 - s))));
            dgate_up[t][width + i] = static_cast<S>(gradient * (gate * s));
        }
    }
}

}  // namespace tessera::reference
