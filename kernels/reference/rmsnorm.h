// RMSNorm of the reference, over groups of `width` columns.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/reference/rows.h"

namespace tessera::reference {

/// y = S(S(x * rstd) * weight); x, y [tokens, groups * width], rstd [tokens, groups], weight [width].
template <typename S>
void rmsnorm_forward(Rows<S> y, Rows<Accumulate<S>> rstd, Rows<const S> x, const S* weight, std::int64_t tokens,
                     std::int64_t groups, std::int64_t width, double eps) {
    using A = Accumulate<S>;
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t g = 0; g < groups; ++g) {
            const S* in = x[t] + g * width;
            S* out = y[t] + g * width;
            const A mean_square = dot<A>(in, in, width) / static_cast<A>(width);
            const A scale = 1 / std::sqrt(mean_square + static_cast<A>(eps));
            rstd[t][g] = scale;
            for (std::int64_t c = 0; c < width; ++c) {
                const S normalised = static_cast<S>(static_cast<A>(in[c]) * scale);
                out[c] = static_cast<S>(static_cast<A>(normalised) * static_cast<A>(weight[c]));
            }
        }
    }
}

/// dweight += sum over tokens and groups of dy * x * rstd.
template <typename S>
void rmsnorm_backward_weight(Accumulate<S>* dweight, Rows<const S> dy, Rows<const S> x, Rows<const Accumulate<S>> rstd,
                             std::int64_t tokens, std::int64_t groups, std::int64_t width) {
    using A = Accumulate<S>;
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t g = 0; g < groups; ++g) {
            const S* dout = dy[t] + g * width;
            const S* in = x[t] + g * width;
            for (std::int64_t c = 0; c < width; ++c) {
                dweight[c] += static_cast<A>(dout[c]) * (static_cast<A>(in[c]) * rstd[t][g]);
            }
        }
    }
}

/// dx = dresidual + rstd * (dy * weight - n * mean(dy * weight * n)) with n = x * rstd. dresidual.data may be null.
/// dx may be dresidual, or dy.
template <typename S>
void rmsnorm_backward_input(Rows<S> dx, Rows<const S> dresidual, Rows<const S> dy, Rows<const S> x,
                            Rows<const Accumulate<S>> rstd, const S* weight, std::int64_t tokens, std::int64_t groups,
                            std::int64_t width) {
    using A = Accumulate<S>;
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t g = 0; g < groups; ++g) {
            const S* dout = dy[t] + g * width;
            const S* in = x[t] + g * width;
            const S* residual = dresidual.data == nullptr ? nullptr : dresidual[t] + g * width;
            S* din = dx[t] + g * width;
            const A scale = rstd[t][g];
            A mean = 0;
            for (std::int64_t c = 0; c < width; ++c) {
                mean += static_cast<A>(dout[c]) * static_cast<A>(weight[c]) * (static_cast<A>(in[c]) * scale);
            }
            mean /= static_cast<A>(width);
            for (std::int64_t c = 0; c < width; ++c) {
                const A through = static_cast<A>(dout[c]) * static_cast<A>(weight[c]);
                const A gradient = scale * (through - static_cast<A>(in[c]) * scale * mean);
                din[c] = static_cast<S>(residual == nullptr ? gradient : static_cast<A>(residual[c]) + gradient);
            }
        }
    }
}

}  // namespace tessera::reference
