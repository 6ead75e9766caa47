// The optimizer's operations of the reference, on contiguous vectors of A.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/ops.h"
#include "kernels/reference/rows.h"

namespace tessera::reference {

/// Sum of squares in double: a fixed number of equal pieces, added in their order whatever the number of threads.
template <typename A>
[[nodiscard]] double squared_norm(const A* x, std::int64_t count) {
    constexpr std::int64_t kPieces = 256;
    const std::int64_t length = count / kPieces + 1;
    std::array<double, kPieces> sums{};
#pragma omp parallel for
    for (std::int64_t piece = 0; piece < kPieces; ++piece) {
        const std::int64_t end = std::min(count, (piece + 1) * length);
        for (std::int64_t i = piece * length; i < end; ++i) {
            sums[piece] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        }
    }
    double sum = 0;
    for (const double part : sums) {
        sum += part;
    }
    return sum;
}

/// y = pieces[0] + pieces[1] + ..., with `add` y + pieces[0] + ...; `count` rows of `cols` columns.
template <typename A, typename P>
void sum_rows(A* y, Rows<const P> pieces, std::int64_t count, std::int64_t cols, bool add) {
#pragma omp parallel for
    for (std::int64_t c = 0; c < cols; ++c) {
        A sum = static_cast<Accumulate<P>>(pieces[0][c]);
        if (add) {
            sum = y[c] + sum;
        }
        for (std::int64_t r = 1; r < count; ++r) {
            sum += static_cast<Accumulate<P>>(pieces[r][c]);
        }
        y[c] = sum;
    }
}

/// As Ops::adam. model_weight is null or receives w converted to S.
template <typename S>
void adam(Accumulate<S>* w, Accumulate<S>* m, Accumulate<S>* v, const Accumulate<S>* gradient, S* model_weight,
          std::int64_t count, const AdamStep& step) {
    using A = Accumulate<S>;
    const A scale = static_cast<A>(step.gradient_scale);
    const A coupled_decay = static_cast<A>(step.decoupled ? 0 : step.weight_decay);
    const A keep = static_cast<A>(step.decoupled ? 1 - step.lr * step.weight_decay : 1);
    const A beta1 = static_cast<A>(step.beta1);
    const A beta2 = static_cast<A>(step.beta2);
    const A one_minus_beta1 = static_cast<A>(1 - step.beta1);
    const A one_minus_beta2 = static_cast<A>(1 - step.beta2);
    const A step_size = static_cast<A>(step.lr / step.bias_correction1);
    const A correction2 = static_cast<A>(step.bias_correction2);
    const A eps = static_cast<A>(step.eps);
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
        const A g = scale * gradient[i] + coupled_decay * w[i];
        m[i] = beta1 * m[i] + one_minus_beta1 * g;
        v[i] = beta2 * v[i] + one_minus_beta2 * (g * g);
        w[i] = keep * w[i] - step_size * m[i] / (std::sqrt(v[i] / correction2) + eps);
        if (model_weight != nullptr) {
            model_weight[i] = static_cast<S>(w[i]);
        }
    }
}

}  // namespace tessera::reference
