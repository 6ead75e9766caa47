// Every backward operation of the reference in double against central differences of its forward operation, for every
// element of every input.
#include <catch2/catch.hpp>
#include <functional>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::inner_product;
using testing::OpsWithWorkspace;
using testing::random_indices;
using testing::random_tensor;
using testing::Tensor;

constexpr DType kDouble = DType::f64;

/// `gradient` must be the derivative of `loss` by every element of `input`. The error of a central difference is
/// h^2 / 6 times the third derivative, and the rounding of the loss over h: with h near the cube root of the unit
/// roundoff 1e-16 both are some 1e-11 for losses and derivatives of order one. Those of the tests are sums of up to
/// some hundred such terms; a wrong formula is off by 1e-2.
void require_gradient(const char* what, Tensor& input, const Tensor& gradient, const std::function<double()>& loss) {
    INFO(what);
    constexpr double kStep = 0x1p-17;
    REQUIRE(gradient.rows() == input.rows());
    REQUIRE(gradient.cols() == input.cols());
    REQUIRE(gradient.padding_intact());
    for (std::int64_t r = 0; r < input.rows(); ++r) {
        for (std::int64_t c = 0; c < input.cols(); ++c) {
            const double value = input.get(r, c);
            input.set(r, c, value + kStep);
            const double above = loss();
            input.set(r, c, value - kStep);
            const double below = loss();
            input.set(r, c, value);
            const double difference = (above - below) / (2 * kStep);
            if (!(std::abs(difference - gradient.get(r, c)) <= 1e-8 * (1 + std::abs(difference)))) {
                CAPTURE(r, c, difference, gradient.get(r, c));
                FAIL("the gradient is not the derivative");
            }
        }
    }
}

/// sum - base: what was added to an output that is accumulated into.
Tensor added(const Tensor& sum, const Tensor& base) {
    Tensor result = sum;
    for (std::int64_t r = 0; r < sum.rows(); ++r) {
        for (std::int64_t c = 0; c < sum.cols(); ++c) {
            result.set(r, c, sum.get(r, c) - base.get(r, c));
        }
    }
    return result;
}

std::int64_t pick(std::mt19937& random, std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

}  // namespace

TEST_CASE("The gradients of a product are the derivatives") {
    const auto ops = make_reference_ops(kDouble);
    for (unsigned seed = 0; seed < 6; ++seed) {
        std::mt19937 random(seed);
        const std::int64_t tokens = pick(random, 1, 7);
        const std::int64_t in = seed == 5 ? 70 : pick(random, 1, 9);  // 70: more than a block of the reference's sums
        const std::int64_t out = pick(random, 1, 8);
        Tensor x = random_tensor(random, kDouble, tokens, in);
        Tensor w = random_tensor(random, kDouble, out, in);
        Tensor bias = random_tensor(random, kDouble, 1, out);
        const Tensor dy = random_tensor(random, kDouble, tokens, out);

        const auto loss = [&] {
            Tensor y(kDouble, tokens, out);
            ops->linear_forward(y, x, w, bias);
            return inner_product(dy, y);
        };
        Tensor dx(kDouble, tokens, in);
        ops->linear_backward_input(dx, dy, w);
        require_gradient("dx", x, dx, loss);

        const Tensor dw_before = random_tensor(random, kDouble, out, in);
        Tensor dw = dw_before;
        ops->linear_backward_weight(dw, dy, x);
        require_gradient("dw", w, added(dw, dw_before), loss);

        const Tensor db_before = random_tensor(random, kDouble, 1, out);
        Tensor db = db_before;
        ops->bias_backward(db, dy);
        require_gradient("db", bias, added(db, db_before), loss);
    }
}

TEST_CASE("The gradient of an embedding is the derivative, with ids that repeat") {
    const auto ops = make_reference_ops(kDouble);
    for (unsigned seed = 0; seed < 4; ++seed) {
        std::mt19937 random(seed);
        const std::int64_t tokens = pick(random, 1, 12);
        const std::int64_t vocabulary = pick(random, 1, 6);
        const std::int64_t hidden = pick(random, 1, 5);
        Tensor table = random_tensor(random, kDouble, vocabulary, hidden);
        const std::vector<std::int32_t> ids = random_indices(random, tokens, vocabulary);
        const Tensor dout = random_tensor(random, kDouble, tokens, hidden);
        const Tensor before = random_tensor(random, kDouble, vocabulary, hidden);
        Tensor dtable = before;
        ops->embedding_backward(dtable, dout, ids);
        require_gradient("dtable", table, added(dtable, before), [&] {
            Tensor out(kDouble, tokens, hidden);
            ops->embedding_forward(out, table, ids);
            return inner_product(dout, out);
        });
    }
}

TEST_CASE("The gradients of add and RMSNorm are the derivatives") {
    const auto ops = make_reference_ops(kDouble);
    const bool with_delta = GENERATE(false, true);
    for (unsigned seed = 0; seed < 6; ++seed) {
        std::mt19937 random(seed);
        const std::int64_t tokens = pick(random, 1, 5);
        const std::int64_t groups = seed % 2 == 0 ? 1 : pick(random, 2, 4);
        const std::int64_t width = pick(random, 1, 9);
        const std::int64_t cols = groups * width;
        const double eps = seed % 3 == 0 ? 1e-5 : 0.3;
        Tensor x = random_tensor(random, kDouble, tokens, cols);
        Tensor delta = with_delta ? random_tensor(random, kDouble, tokens, cols) : Tensor();
        Tensor weight = random_tensor(random, kDouble, 1, width);
        const Tensor dy = random_tensor(random, kDouble, tokens, cols);
        // The sum is an output too: it is the residual stream, whose gradient comes back as dresidual.
        const Tensor dresidual = with_delta ? random_tensor(random, kDouble, tokens, cols) : Tensor();

        Tensor y(kDouble, tokens, cols);
        Tensor rstd(kDouble, tokens, groups);
        Tensor sum(kDouble, tokens, cols);
        const auto loss = [&] {
            ops->add_rmsnorm_forward(y, rstd, sum, x, delta, weight, eps);
            return inner_product(dy, y) + (with_delta ? inner_product(dresidual, sum) : 0);
        };
        static_cast<void>(loss());
        const Tensor before = random_tensor(random, kDouble, 1, width);
        Tensor dweight = before;
        Tensor dx(kDouble, tokens, cols);
        ops->rmsnorm_backward(dx, dweight, dresidual, dy, with_delta ? sum : x, rstd, weight);
        // A group of one column with a small eps is almost a step function: its third derivative is large.
        if (width > 1 || eps > 0.1) {
            require_gradient("dx", x, dx, loss);
            if (with_delta) {
                require_gradient("ddelta", delta, dx, loss);
            }
        }
        require_gradient("dweight", weight, added(dweight, before), loss);
    }
}

TEST_CASE("The inverse rope is the gradient of rope and undoes it") {
    const auto ops = make_reference_ops(kDouble);
    for (unsigned seed = 0; seed < 4; ++seed) {
        std::mt19937 random(seed);
        const std::int64_t tokens = pick(random, 1, 6);
        const std::int64_t heads = pick(random, 1, 3);
        const std::int64_t half = pick(random, 1, 4);
        const std::int64_t length = 9;
        const double factor = seed % 2 == 0 ? 1 : 1.25;  // the attention factor of yarn is part of the table
        Tensor cos(kDouble, length, half);
        Tensor sin(kDouble, length, half);
        for (std::int64_t p = 0; p < length; ++p) {
            for (std::int64_t i = 0; i < half; ++i) {
                const double angle =
                    static_cast<double>(p) * std::pow(1e4, -static_cast<double>(i) / static_cast<double>(half));
                cos.set(p, i, factor * std::cos(angle));
                sin.set(p, i, factor * std::sin(angle));
            }
        }
        const RopeTable table{cos, sin};
        const std::vector<std::int32_t> positions = random_indices(random, tokens, length);
        Tensor x = random_tensor(random, kDouble, tokens, heads * 2 * half);
        const Tensor dy = random_tensor(random, kDouble, tokens, heads * 2 * half);
        Tensor dx = dy;
        ops->rope(dx, table, positions, 2 * half, true);
        require_gradient("dx", x, dx, [&] {
            Tensor y = x;
            ops->rope(y, table, positions, 2 * half, false);
            return inner_product(dy, y);
        });

        Tensor back = x;
        ops->rope(back, table, positions, 2 * half, false);
        ops->rope(back, table, positions, 2 * half, true);
        for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t c = 0; c < x.cols(); ++c) {
                REQUIRE(back.get(t, c) == Approx(factor * factor * x.get(t, c)).margin(1e-14));
            }
        }
    }
}

TEST_CASE("The gradients of attention are the derivatives: segments, windows, groups, odd sizes") {
    struct Case {
        std::vector<std::int64_t> starts;
        std::int64_t heads, kv_heads, head_dim, window;
    };
    const std::vector<Case> cases = {
        {{0, 1}, 1, 1, 1, 0},        {{0, 5}, 2, 2, 3, 0},       {{0, 7}, 4, 2, 3, 0},
        {{0, 6}, 3, 1, 2, 2},        {{0, 9}, 2, 1, 4, 1},       {{0, 0, 3, 3, 8, 9, 9}, 4, 2, 5, 0},
        {{0, 2, 7, 11}, 6, 3, 2, 3}, {{0, 2, 4}, 2, 1, 66, 100}, {{0, 8}, 5, 5, 1, 4},
    };
    unsigned seed = 0;
    for (const Case& c : cases) {
        std::mt19937 random(seed++);
        const AttentionShape shape{.heads = c.heads,
                                   .kv_heads = c.kv_heads,
                                   .head_dim = c.head_dim,
                                   .window = c.window,
                                   .scale = 1 / std::sqrt(static_cast<double>(c.head_dim)),
                                   .starts = c.starts};
        OpsWithWorkspace ops(make_reference_ops(kDouble), testing::attention_limits(shape));
        const std::int64_t tokens = c.starts.back();
        const std::int64_t q_cols = c.heads * c.head_dim;
        const std::int64_t kv_cols = c.kv_heads * c.head_dim;
        Tensor q = random_tensor(random, kDouble, tokens, q_cols);
        Tensor k = random_tensor(random, kDouble, tokens, kv_cols);
        Tensor v = random_tensor(random, kDouble, tokens, kv_cols);
        const Tensor dout = random_tensor(random, kDouble, tokens, q_cols);
        Tensor out(kDouble, tokens, q_cols);
        Tensor lse(kDouble, tokens, c.heads);
        const auto loss = [&] {
            ops->attention_forward(out, lse, q, k, v, shape);
            return inner_product(dout, out);
        };
        static_cast<void>(loss());
        Tensor dq(kDouble, tokens, q_cols);
        Tensor dk(kDouble, tokens, kv_cols);
        Tensor dv(kDouble, tokens, kv_cols);
        ops->attention_backward(dq, dk, dv, dout, q, k, v, out, lse, shape);
        CAPTURE(c.starts, c.heads, c.kv_heads, c.head_dim, c.window);
        require_gradient("dq", q, dq, loss);
        require_gradient("dk", k, dk, loss);
        require_gradient("dv", v, dv, loss);
    }
}

TEST_CASE("The gradient of SwiGLU is the derivative") {
    const auto ops = make_reference_ops(kDouble);
    for (unsigned seed = 0; seed < 4; ++seed) {
        std::mt19937 random(seed);
        const std::int64_t tokens = pick(random, 1, 5);
        const std::int64_t width = pick(random, 1, 7);
        Tensor gate_up = random_tensor(random, kDouble, tokens, 2 * width, 3);
        const Tensor dact = random_tensor(random, kDouble, tokens, width);
        Tensor dgate_up(kDouble, tokens, 2 * width);
        ops->swiglu_backward(dgate_up, dact, gate_up);
        require_gradient("dgate_up", gate_up, dgate_up, [&] {
            Tensor act(kDouble, tokens, width);
            ops->swiglu_forward(act, gate_up);
            return inner_product(dact, act);
        });
    }
}

namespace {

Tensor signed_weights(std::mt19937& random, std::int64_t rows) {
    Tensor weights = random_tensor(random, kDouble, 1, rows);
    for (std::int64_t r = 0; r < rows; r += 3) {
        weights.set(0, r, 0);
    }
    return weights;
}

double negative_weighted_sum(const Tensor& weights, const Tensor& log_probs) {
    return -inner_product(weights, log_probs);
}

}  // namespace

TEST_CASE("The gradient of cross-entropy is the derivative, with weights of both signs and 0") {
    const auto ops = make_reference_ops(kDouble);
    for (unsigned seed = 0; seed < 5; ++seed) {
        std::mt19937 random(seed);
        const std::int64_t rows = pick(random, 2, 7);
        const std::int64_t vocabulary = seed == 0 ? 1 : pick(random, 2, 11);
        Tensor logits = random_tensor(random, kDouble, rows, vocabulary, 2);
        const std::vector<std::int32_t> targets = random_indices(random, rows, vocabulary);
        const Tensor weights = signed_weights(random, rows);
        Tensor log_probs(kDouble, 1, rows);
        Tensor dlogits(kDouble, rows, vocabulary);
        ops->cross_entropy(log_probs, dlogits, logits, targets, weights);
        const Tensor gradient = dlogits;
        require_gradient("dlogits", logits, gradient, [&] {
            ops->cross_entropy(log_probs, dlogits, logits, targets, weights);
            return negative_weighted_sum(weights, log_probs);
        });
    }
}

TEST_CASE("Weights of tokens multiply before the weight-gradient product") {
    const auto ops = make_reference_ops(kDouble);
    std::mt19937 random(11);
    const std::int64_t rows = 7;
    const std::int64_t vocabulary = 9;
    const std::int64_t hidden = 4;
    Tensor x = random_tensor(random, kDouble, rows, hidden);
    Tensor w = random_tensor(random, kDouble, vocabulary, hidden);
    const std::vector<std::int32_t> targets = random_indices(random, rows, vocabulary);
    const Tensor weights = signed_weights(random, rows);
    Tensor log_probs(kDouble, 1, rows);
    Tensor logits(kDouble, rows, vocabulary);
    Tensor dlogits(kDouble, rows, vocabulary);
    const auto loss = [&] {
        ops->logits_forward(logits, x, w);
        ops->cross_entropy(log_probs, dlogits, logits, targets, weights);
        return negative_weighted_sum(weights, log_probs);
    };
    static_cast<void>(loss());
    Tensor dw(kDouble, vocabulary, hidden);
    ops->linear_backward_weight(dw, dlogits, x);
    Tensor dx(kDouble, rows, hidden);
    ops->linear_backward_input(dx, dlogits, w);
    require_gradient("dw", w, dw, loss);
    require_gradient("dx", x, dx, loss);
}

}  // namespace tessera
