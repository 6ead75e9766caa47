// The optimizer's operations of the reference: Adam and AdamW against the formulas and PyTorch's numbers, norms and
// sums.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/tensor.h"

namespace tessera {
namespace {

using testing::random_tensor;
using testing::Tensor;

struct State {
    std::vector<double> w, m, v;
};

/// One step written out for a single double at a time.
void step_by_formula(State& state, const std::vector<double>& gradient, const AdamStep& step) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        double g = step.gradient_scale * gradient[i];
        if (!step.decoupled) {
            g += step.weight_decay * state.w[i];
        } else {
            state.w[i] -= step.lr * step.weight_decay * state.w[i];
        }
        state.m[i] = step.beta1 * state.m[i] + (1 - step.beta1) * g;
        state.v[i] = step.beta2 * state.v[i] + (1 - step.beta2) * g * g;
        const double m_hat = state.m[i] / step.bias_correction1;
        const double v_hat = state.v[i] / step.bias_correction2;
        state.w[i] -= step.lr * m_hat / (std::sqrt(v_hat) + step.eps);
    }
}

Tensor vector_of(DType dtype, const std::vector<double>& values) {
    Tensor result(dtype, 1, static_cast<std::int64_t>(values.size()));
    for (std::int64_t i = 0; i < result.cols(); ++i) {
        result.set(0, i, values[i]);
    }
    return result;
}

AdamStep step_number(int t, bool decoupled) {
    AdamStep step;
    step.lr = 1e-2 * (1 - 0.1 * (t - 1));
    step.beta1 = 0.9;
    step.beta2 = 0.95;
    step.eps = 1e-6;
    step.weight_decay = 0.1;
    step.decoupled = decoupled;
    step.bias_correction1 = 1 - std::pow(step.beta1, t);
    step.bias_correction2 = 1 - std::pow(step.beta2, t);
    step.gradient_scale = 0.6;
    return step;
}

const std::vector<double> kWeights = {0.5, -1.25, 2.0, 0.0};
const std::vector<std::vector<double>> kGradients = {{0.1, -0.2, 0.3, 1e-3},
                                                     {-0.05, 0.4, 0.0, 2e-3},
                                                     {1.5, -0.75, 0.25, -1e-3},
                                                     {0.0, 0.125, -2.0, 1e-9},
                                                     {0.7, 0.01, -0.3, 0.0}};

/// Five steps of torch.optim.AdamW and torch.optim.Adam (PyTorch 2.13, float64) with kWeights, kGradients times 0.6 and
/// the hyperparameters of step_number.
const State kTorchAdamW = {{0.47303317901282749, -1.2322065775523032, 1.9751143933609454, -0.026125991890683001},
                           {0.11664959999999996, -0.01947719999999999, -0.10204019999999997, 7.824605399999997e-05},
                           {0.04555644300000003, 0.012462484500000008, 0.072354812625000042, 9.2637112500017161e-08}};
const State kTorchAdam = {{0.46896079365869181, -1.224394209079493, 1.9752057416301443, -0.0062629490138913875},
                          {0.13644029542955149, -0.070109619021050923, -0.020851156289219214, -0.00037153136912499059},
                          {0.05211377655427666, 0.018667978179133866, 0.060812857699314146, 4.2510887788080709e-07}};

/// The worst relative error of a step is some ten roundings; each step adds its own.
void require_state(const Tensor& w, const Tensor& m, const Tensor& v, const State& expected, double relative) {
    const double absolute = relative * 1e-3;  // w of the last element passes near 0
    testing::require_close("w", w, vector_of(DType::f64, expected.w), relative, absolute);
    testing::require_close("m", m, vector_of(DType::f64, expected.m), relative, absolute);
    testing::require_close("v", v, vector_of(DType::f64, expected.v), relative, absolute);
}

}  // namespace

TEST_CASE("Adam and AdamW follow the formulas, in double and in float, and PyTorch") {
    const bool decoupled = GENERATE(false, true);
    const DType storage = GENERATE(DType::f64, DType::f32, DType::bf16);
    const auto ops = make_reference_ops(storage);
    const DType a = ops->accumulate();
    const double relative = 50 * testing::unit_roundoff(a);

    State state{kWeights, std::vector<double>(4, 0), std::vector<double>(4, 0)};
    Tensor w = vector_of(a, kWeights);
    Tensor m(a, 1, 4);
    Tensor v(a, 1, 4);
    Tensor model_weight(storage, 1, 4);
    for (int t = 1; t <= 5; ++t) {
        const AdamStep step = step_number(t, decoupled);
        step_by_formula(state, kGradients[t - 1], step);
        ops->adam(w, m, v, vector_of(a, kGradients[t - 1]), model_weight, step);
        require_state(w, m, v, state, relative);
        REQUIRE(model_weight == w.as(storage));
    }
    require_state(w, m, v, decoupled ? kTorchAdamW : kTorchAdam, relative);

    Tensor same = vector_of(a, kWeights);
    Tensor none;
    Tensor m2(a, 1, 4);
    Tensor v2(a, 1, 4);
    for (int t = 1; t <= 5; ++t) {
        ops->adam(same, m2, v2, vector_of(a, kGradients[t - 1]), none, step_number(t, decoupled));
    }
    REQUIRE(same == w);
}

TEST_CASE("An element of Adam has the same bits wherever its range begins") {
    const auto ops = make_reference_ops(DType::f32);
    std::mt19937 random(3);
    const std::int64_t count = 101;
    Tensor w = random_tensor(random, DType::f32, 1, count);
    Tensor m = random_tensor(random, DType::f32, 1, count);
    Tensor v(DType::f32, 1, count);
    const Tensor gradient = random_tensor(random, DType::f32, 1, count);
    Tensor w_parts = w;
    Tensor m_parts = m;
    Tensor v_parts = v;
    const AdamStep step = step_number(3, true);
    Tensor none;
    ops->adam(w, m, v, gradient, none, step);
    for (std::int64_t first = 0; first < count;) {
        const std::int64_t length = std::min<std::int64_t>(first % 7 + 1, count - first);
        const auto part = [&](auto view) { return view.col_range(first, length); };
        ops->adam(part(Matrix(w_parts)), part(Matrix(m_parts)), part(Matrix(v_parts)), part(ConstMatrix(gradient)),
                  none, step);
        first += length;
    }
    REQUIRE(w_parts == w);
    REQUIRE(m_parts == m);
    REQUIRE(v_parts == v);
}

TEST_CASE("The squared norm is summed in double in one order") {
    const auto ops = make_reference_ops(DType::f32);
    for (const std::int64_t count : {1, 2, 255, 256, 257, 1000, 70001}) {
        std::mt19937 random(static_cast<unsigned>(count));
        const Tensor x = random_tensor(random, DType::f32, 1, count);
        const double norm = ops->squared_norm(x);
        REQUIRE(norm == Approx(testing::inner_product(x, x)).epsilon(1e-14));
        REQUIRE(ops->squared_norm(x) == norm);
    }
    REQUIRE(ops->squared_norm(Tensor()) == 0);
    Tensor huge(DType::f32, 1, 2);
    huge.set(0, 0, 3e38);
    huge.set(0, 1, 3e38);
    REQUIRE(std::isfinite(ops->squared_norm(huge)));
    huge.set(0, 1, std::numeric_limits<double>::quiet_NaN());
    REQUIRE(std::isnan(ops->squared_norm(huge)));
}

TEST_CASE("Rows are summed in their order, also into the first of them") {
    const auto ops = make_reference_ops(DType::f32);
    std::mt19937 random(1);
    Tensor pieces = random_tensor(random, DType::f32, 5, 37);
    Tensor expected(DType::f32, 1, 37);
    for (std::int64_t c = 0; c < 37; ++c) {
        auto sum = static_cast<float>(pieces.get(0, c));
        for (std::int64_t r = 1; r < 5; ++r) {
            sum += static_cast<float>(pieces.get(r, c));
        }
        expected.set(0, c, sum);
    }
    Tensor y(DType::f32, 1, 37);
    ops->sum_rows(y, pieces, false);
    REQUIRE(y == expected);
    ops->sum_rows(Matrix(pieces).row_range(0, 1), pieces, false);
    REQUIRE(pieces.rows_from(0, 1) == expected);
}

}  // namespace tessera
