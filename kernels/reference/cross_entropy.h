// Log-probs, entropy and the gradient of cross-entropy of the reference, one row of logits at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/reference/rows.h"

namespace tessera::reference {

/// What a row of logits z = logits / temperature needs of its softmax.
template <typename A>
struct SoftmaxRow {
    A largest = 0;  // of z
    A sum = 0;      // of exp(z - largest)
    A moment = 0;   // sum of exp(z - largest) * (z - largest)
};

/// The sums are kept in double: a vocabulary is long, and a float that has grown loses the small terms.
template <typename A>
[[nodiscard]] SoftmaxRow<A> softmax_row(const A* logits, std::int64_t vocabulary, A temperature) {
    A largest = -std::numeric_limits<A>::infinity();
    for (std::int64_t c = 0; c < vocabulary; ++c) {
        largest = std::max(largest, logits[c] / temperature);
    }
    double sum = 0;
    double moment = 0;
    for (std::int64_t c = 0; c < vocabulary; ++c) {
        const A difference = logits[c] / temperature - largest;
        const A e = std::exp(difference);
        sum += e;
        // 0 * -infinity would be NaN; its limit is 0.
        moment += e > 0 ? e * difference : 0;
    }
    return {largest, static_cast<A>(sum), static_cast<A>(moment)};
}

/// log_probs [rows]; entropy [rows] or null; logits [rows, vocabulary].
template <typename A>
void log_prob_forward(A* log_probs, A* entropy, Rows<const A> logits, std::span<const std::int32_t> targets,
                      std::int64_t vocabulary, A temperature) {
    const auto rows = static_cast<std::int64_t>(targets.size());
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows; ++r) {
        const SoftmaxRow<A> softmax = softmax_row(logits[r], vocabulary, temperature);
        log_probs[r] = logits[r][targets[r]] / temperature - softmax.largest - std::log(softmax.sum);
        if (entropy != nullptr) {
            entropy[r] = std::log(softmax.sum) - softmax.moment / softmax.sum;
        }
    }
}

/// log_probs as above, and dlogits[r] = weights[r] * (softmax - onehot). dlogits may be logits where S = A.
template <typename S>
void cross_entropy(Accumulate<S>* log_probs, Rows<S> dlogits, Rows<const Accumulate<S>> logits,
                   std::span<const std::int32_t> targets, const Accumulate<S>* weights, std::int64_t vocabulary) {
    using A = Accumulate<S>;
    const auto rows = static_cast<std::int64_t>(targets.size());
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows; ++r) {
        const SoftmaxRow<A> softmax = softmax_row(logits[r], vocabulary, A{1});
        log_probs[r] = logits[r][targets[r]] - softmax.largest - std::log(softmax.sum);
        if (weights[r] == 0) {
            // Not 0 times something that may be negative, infinite or NaN.
            std::fill_n(dlogits[r], vocabulary, S{});
            continue;
        }
        for (std::int64_t c = 0; c < vocabulary; ++c) {
            const A p = std::exp(logits[r][c] - softmax.largest) / softmax.sum;
            const A onehot = c == targets[r] ? A{1} : A{0};
            dlogits[r][c] = static_cast<S>(weights[r] * (p - onehot));
        }
    }
}

}  // namespace tessera::reference
