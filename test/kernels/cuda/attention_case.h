// A case of attention for the tests of the device's kernels: its inputs at random, and what comes of them in double and
// by a plain composition of products and softmax.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"
#include "test/simt/emulator.h"

namespace tessera::testing {

using Starts = std::vector<std::int64_t>;

struct Case {
    DType dtype = DType::bf16;
    std::int64_t head_dim = 64;
    Starts starts = {0, 64};
    std::int64_t heads = 1;
    std::int64_t kv_heads = 1;
    std::int64_t window = 0;
    double scale = 0;                 // 0: 1 / sqrt(head_dim)
    double size = 1;                  // standard deviation of q and k
    std::int64_t columns_before = 8;  // 8 and 16: aligned where head_dim is
    std::int64_t columns_behind = 16;
    std::int64_t columns_before_out = 8;
    simt::Order order = simt::Order::forward;
    bool truncate = false;  // sums in mma, as the hardware does

    [[nodiscard]] AttentionShape shape() const {
        return {.heads = heads,
                .kv_heads = kv_heads,
                .head_dim = head_dim,
                .window = window,
                .scale = scale == 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : scale,
                .starts = starts};
    }
    [[nodiscard]] std::int64_t tokens() const { return starts.back(); }
};

struct Inputs {
    Inputs(const Case& c, unsigned seed) {
        std::mt19937 random(seed);
        q = random_tensor(random, c.dtype, c.tokens(), c.heads * c.head_dim, c.size);
        k = random_tensor(random, c.dtype, c.tokens(), c.kv_heads * c.head_dim, c.size);
        v = random_tensor(random, c.dtype, c.tokens(), c.kv_heads * c.head_dim);
        dout = random_tensor(random, c.dtype, c.tokens(), c.heads * c.head_dim);
    }
    Tensor q, k, v, dout;
};

struct Results {
    /// Of the shapes that a case has, in `dtype`; the log-sum-exp in `lse_dtype`.
    Results(const Case& c, DType dtype, DType lse_dtype)
        : out(dtype, c.tokens(), c.heads * c.head_dim),
          lse(lse_dtype, c.tokens(), c.heads),
          dq(out),
          dk(dtype, c.tokens(), c.kv_heads * c.head_dim),
          dv(dk) {}
    friend bool operator==(const Results&, const Results&) = default;

    Tensor out, lse, dq, dk, dv;
};

/// Both passes in double, on the same inputs.
inline Results expected_results(const Case& c, const Inputs& inputs) {
    const AttentionShape shape = c.shape();
    Results results(c, DType::f64, DType::f64);
    const Tensor q = inputs.q.as(DType::f64);
    const Tensor k = inputs.k.as(DType::f64);
    const Tensor v = inputs.v.as(DType::f64);
    const Tensor dout = inputs.dout.as(DType::f64);
    OpsWithWorkspace ops(make_reference_ops(DType::f64), attention_limits(shape));
    ops->attention_forward(results.out, results.lse, q, k, v, shape);
    ops->attention_backward(results.dq, results.dk, results.dv, dout, q, k, v, results.out, results.lse, shape);
    return results;
}

/// Rounds to a dtype.
inline double rounded(DType dtype, double value) {
    std::uint64_t memory = 0;
    convert(dtype, &memory, DType::f64, &value, 1);
    convert(DType::f64, &value, dtype, &memory, 1);
    return value;
}

/// Attention as a plain composition of products, softmax and products computes it: sums in float, every matrix (scores,
/// probabilities and their gradients too) rounded to the storage dtype. What flash attention is measured by.
inline Results plain_results(const Case& c, const Inputs& inputs) {
    const AttentionShape shape = c.shape();
    const auto scale = static_cast<float>(shape.scale);
    const auto round = [&](float x) { return static_cast<float>(rounded(c.dtype, x)); };
    const auto dot = [&](const Tensor& a, std::int64_t i, std::int64_t a_head, const Tensor& b, std::int64_t j,
                         std::int64_t b_head) {
        float sum = 0;
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
            sum += static_cast<float>(a.get(i, a_head * c.head_dim + d)) *
                   static_cast<float>(b.get(j, b_head * c.head_dim + d));
        }
        return sum;
    };
    Results results(c, c.dtype, DType::f32);
    std::vector<float> dk(static_cast<std::size_t>(c.tokens() * c.kv_heads * c.head_dim));
    std::vector<float> dv(dk.size());
    for (std::size_t s = 1; s < c.starts.size(); ++s) {
        for (std::int64_t head = 0; head < c.heads; ++head) {
            const std::int64_t kv = head / (c.heads / c.kv_heads);
            for (std::int64_t i = c.starts[s - 1]; i < c.starts[s]; ++i) {
                const std::int64_t first = c.window > 0 ? std::max(c.starts[s - 1], i - c.window + 1) : c.starts[s - 1];
                std::vector<float> p;
                std::vector<float> dp;
                float largest = -std::numeric_limits<float>::infinity();
                for (std::int64_t j = first; j <= i; ++j) {
                    p.push_back(round(scale * dot(inputs.q, i, head, inputs.k, j, kv)));
                    dp.push_back(round(dot(inputs.dout, i, head, inputs.v, j, kv)));
                    largest = std::max(largest, p.back());
                }
                float total = 0;
                for (float& x : p) {
                    x = std::exp(x - largest);
                    total += x;
                }
                for (float& x : p) {
                    x = round(x / total);
                }
                results.lse.set(i, head, largest + std::log(total));
                float mean = 0;  // of the gradients of probabilities, from the stored output as in flash attention
                for (std::int64_t column = head * c.head_dim; column < (head + 1) * c.head_dim; ++column) {
                    float out = 0;
                    for (std::size_t n = 0; n < p.size(); ++n) {
                        out += p[n] * static_cast<float>(inputs.v.get(first + static_cast<std::int64_t>(n),
                                                                      column + (kv - head) * c.head_dim));
                    }
                    results.out.set(i, column, out);
                    mean += static_cast<float>(results.out.get(i, column) * inputs.dout.get(i, column));
                }
                std::vector<float> ds;
                for (std::size_t n = 0; n < p.size(); ++n) {
                    ds.push_back(round(p[n] * (dp[n] - mean)));
                }
                for (std::int64_t d = 0; d < c.head_dim; ++d) {
                    const std::int64_t column = head * c.head_dim + d;
                    const std::int64_t kv_column = kv * c.head_dim + d;
                    float dq = 0;
                    for (std::size_t n = 0; n < p.size(); ++n) {
                        const std::int64_t j = first + static_cast<std::int64_t>(n);
                        const auto at = static_cast<std::size_t>(j * c.kv_heads * c.head_dim + kv_column);
                        dq += ds[n] * static_cast<float>(inputs.k.get(j, kv_column));
                        dk[at] += ds[n] * static_cast<float>(inputs.q.get(i, column));
                        dv[at] += p[n] * static_cast<float>(inputs.dout.get(i, column));
                    }
                    results.dq.set(i, column, scale * dq);
                }
            }
        }
    }
    for (std::int64_t j = 0; j < c.tokens(); ++j) {
        for (std::int64_t column = 0; column < c.kv_heads * c.head_dim; ++column) {
            const auto at = static_cast<std::size_t>(j * c.kv_heads * c.head_dim + column);
            results.dk.set(j, column, scale * dk[at]);
            results.dv.set(j, column, dv[at]);
        }
    }
    return results;
}

}  // namespace tessera::testing
