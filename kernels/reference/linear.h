// Products of the reference: plain loops, one row of the result at a time.
#pragma once

#include <cstdint>

#include "kernels/reference/rows.h"

namespace tessera::reference {

/// y = x wT + bias; x [tokens, in], w [out, in], y [tokens, out]; bias [out] or null. Y is S, or A for logits.
template <typename Y, typename S>
void linear_forward(Rows<Y> y, Rows<const S> x, Rows<const S> w, const S* bias, std::int64_t tokens, std::int64_t out,
                    std::int64_t in) {
    using A = Accumulate<S>;
#pragma omp parallel for collapse(2)
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < out; ++o) {
            const A product = dot<A>(x[t], w[o], in);
            y[t][o] = static_cast<Y>(bias == nullptr ? product : product + static_cast<A>(bias[o]));
        }
    }
}

/// dx = dy w.
template <typename S>
void linear_backward_input(Rows<S> dx, Rows<const S> dy, Rows<const S> w, std::int64_t tokens, std::int64_t out,
                           std::int64_t in) {
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t) {
        weighted_row_sum(dx[t], dy[t], w, out, in);
    }
}

/// dw += dyT x, tokens in ascending order.
template <typename S>
void linear_backward_weight(Rows<Accumulate<S>> dw, Rows<const S> dy, Rows<const S> x, std::int64_t tokens,
                            std::int64_t out, std::int64_t in) {
    using A = Accumulate<S>;
#pragma omp parallel for
    for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t t = 0; t < tokens; ++t) {
            add_scaled(dw[o], static_cast<A>(dy[t][o]), x[t], in);
        }
    }
}

/// db += column sums of dy, tokens in ascending order.
template <typename S>
void bias_backward(Accumulate<S>* db, Rows<const S> dy, std::int64_t tokens, std::int64_t out) {
    for (std::int64_t t = 0; t < tokens; ++t) {
        add_scaled(db, Accumulate<S>{1}, dy[t], out);
    }
}

}  // namespace tessera::reference
