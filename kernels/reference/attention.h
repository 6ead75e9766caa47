// Eager attention of the reference: softmax row by row, gradients from the saved logsumexp. Segments and key-value
// heads are independent of each other and shared out among the threads; each is computed by one thread in one order,
// relative to its own first token. A segment therefore has the same bits alone and packed with others.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ops.h"
#include "kernels/reference/rows.h"

namespace tessera::reference {

/// Elements of A that the functions below need as scratch: a row of scores, and sums of dk and dv.
[[nodiscard]] constexpr std::int64_t attention_scratch(std::int64_t tokens, std::int64_t kv_heads,
                                                       std::int64_t head_dim) {
    return tokens * kv_heads * (2 * head_dim + 1);
}

/// First key that query `i` of the segment that begins at `begin` sees.
[[nodiscard]] inline std::int64_t first_visible(std::int64_t i, std::int64_t begin, std::int64_t window) {
    return window > 0 ? std::max(begin, i - window + 1) : begin;
}

/// Calls work(begin, end, kv_head) for every segment of tokens [begin, end) and key-value head, on all threads.
template <typename Work>
void for_each_independent(const AttentionShape& shape, const Work& work) {
    const auto segments = static_cast<std::int64_t>(shape.starts.size()) - 1;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (std::int64_t segment = 0; segment < segments; ++segment) {
        for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
            work(shape.starts[segment], shape.starts[segment + 1], kv_head);
        }
    }
}

/// Shapes as in Ops::attention_forward; scratch of attention_scratch elements.
template <typename S>
void attention_forward(Rows<S> out, Rows<Accumulate<S>> lse, Rows<const S> q, Rows<const S> k, Rows<const S> v,
                       const AttentionShape& shape, Accumulate<S>* scratch) {
    using A = Accumulate<S>;
    const std::int64_t tokens = shape.starts.back();
    const std::int64_t dim = shape.head_dim;
    const std::int64_t group = shape.heads / shape.kv_heads;
    const A scale = static_cast<A>(shape.scale);
    for_each_independent(shape, [&](std::int64_t begin, std::int64_t end, std::int64_t kv_head) {
        A* scores = scratch + kv_head * tokens + begin;
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t first = first_visible(i, begin, shape.window);
                const std::int64_t count = i + 1 - first;
                A largest = -std::numeric_limits<A>::infinity();
                for (std::int64_t j = 0; j < count; ++j) {
                    scores[j] = scale * dot<A>(q[i] + head * dim, k[first + j] + kv_head * dim, dim);
                    largest = std::max(largest, scores[j]);
                }
                A sum = 0;
                for (std::int64_t j = 0; j < count; ++j) {
                    scores[j] = std::exp(scores[j] - largest);
                    sum += scores[j];
                }
                for (std::int64_t j = 0; j < count; ++j) {
                    scores[j] /= sum;
                }
                const Rows<const S> values{v[first] + kv_head * dim, v.stride};
                weighted_row_sum(out[i] + head * dim, scores, values, count, dim);
                lse[i][head] = largest + std::log(sum);
            }
        }
    });
}

/// Shapes as in Ops::attention_backward; scratch of attention_scratch elements. With P = exp(scores - lse):
/// dv = PT dout; dS = P * (dout vT - rowsum(dout * out)); dq = scale dS k; dk = scale dST q.
template <typename S>
void attention_backward(Rows<S> dq, Rows<S> dk, Rows<S> dv, Rows<const S> dout, Rows<const S> q, Rows<const S> k,
                        Rows<const S> v, Rows<const S> out, Rows<const Accumulate<S>> lse, const AttentionShape& shape,
                        Accumulate<S>* scratch) {
    using A = Accumulate<S>;
    const std::int64_t tokens = shape.starts.back();
    const std::int64_t dim = shape.head_dim;
    const std::int64_t group = shape.heads / shape.kv_heads;
    const A scale = static_cast<A>(shape.scale);
    for_each_independent(shape, [&](std::int64_t begin, std::int64_t end, std::int64_t kv_head) {
        A* dscores = scratch + kv_head * tokens + begin;
        A* sums = scratch + shape.kv_heads * tokens + (kv_head * tokens + begin) * 2 * dim;
        const Rows<A> dk_sum{sums, dim};
        const Rows<A> dv_sum{sums + (end - begin) * dim, dim};
        std::fill_n(sums, (end - begin) * 2 * dim, A{0});
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t first = first_visible(i, begin, shape.window);
                const S* query = q[i] + head * dim;
                const S* gradient = dout[i] + head * dim;
                const A mean = dot<A>(gradient, out[i] + head * dim, dim);
                for (std::int64_t j = first; j <= i; ++j) {
                    const A p = std::exp(scale * dot<A>(query, k[j] + kv_head * dim, dim) - lse[i][head]);
                    const A dp = dot<A>(gradient, v[j] + kv_head * dim, dim);
                    const A ds = scale * (p * (dp - mean));
                    dscores[j - first] = ds;
                    add_scaled(dv_sum[j - begin], p, gradient, dim);
                    add_scaled(dk_sum[j - begin], ds, query, dim);
                }
                const Rows<const S> keys{k[first] + kv_head * dim, k.stride};
                weighted_row_sum(dq[i] + head * dim, dscores, keys, i + 1 - first, dim);
            }
        }
        for (std::int64_t j = begin; j < end; ++j) {
            for (std::int64_t d = 0; d < dim; ++d) {
                dk[j][kv_head * dim + d] = static_cast<S>(dk_sum[j - begin][d]);
                dv[j][kv_head * dim + d] = static_cast<S>(dv_sum[j - begin][d]);
            }
        }
    });
}

}  // namespace tessera::reference
