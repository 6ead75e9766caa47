// Adam and AdamW on the device, against double, and stochastic rounding.
#include "kernels/cuda/adam.h"

#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera {
namespace {

using namespace testing;

AdamStep example_step(bool decoupled) {
    AdamStep step;
    step.lr = 1e-2;
    step.beta2 = 0.95;
    step.eps = 1e-6;
    step.weight_decay = 0.1;
    step.decoupled = decoupled;
    step.bias_correction1 = 1 - std::pow(step.beta1, 3);
    step.bias_correction2 = 1 - std::pow(step.beta2, 3);
    step.gradient_scale = 0.6;
    return step;
}

struct State {
    Tensor w, m, v, gradient;

    State(std::mt19937& random, std::int64_t count)
        : w(random_tensor(random, DType::f32, 1, count)),
          m(random_tensor(random, DType::f32, 1, count, 0.1)),
          v(random_tensor(random, DType::f32, 1, count, 0.1)),
          gradient(random_tensor(random, DType::f32, 1, count)) {
        for (std::int64_t i = 0; i < count; ++i) {
            v.set(0, i, std::pow(v.get(0, i), 2));
        }
    }
};

/// w, m, v and the model's weights after a step over elements [first, first + count).
std::vector<Tensor> step_range(simt::Stream stream, const State& state, std::int64_t first, std::int64_t count,
                               std::optional<DType> model, AdamStep step, Layout model_layout = Layout::packed) {
    const DeviceMatrix w(state.w, Layout::packed);
    const DeviceMatrix m(state.m, Layout::packed);
    const DeviceMatrix v(state.v, Layout::packed);
    const DeviceMatrix gradient(state.gradient, Layout::packed);
    const DeviceMatrix weights(model ? Tensor(*model, 1, state.w.cols()) : Tensor(), model_layout);
    if (step.rounding) {
        step.rounding->first += first;
    }
    const auto part = [&](const DeviceMatrix& x) {
        return x.view().empty() ? Matrix() : x.view().col_range(first, count);
    };
    cuda::adam(stream, part(w), part(m), part(v), part(gradient), part(weights), step);
    return {w.read(), m.read(), v.read(), weights.read()};
}

Tensor columns(const Tensor& x, std::int64_t first, std::int64_t count) {
    Tensor result(x.dtype(), 1, count);
    for (std::int64_t i = 0; i < count; ++i) {
        result.set(0, i, x.get(0, first + i));
    }
    return result;
}

TEST_CASE("A step agrees with double for every type of the model's weights, and untouched elements stay") {
    std::mt19937 random(1);
    int number = 0;
    for (const std::int64_t count : {1, 3, 1023, 1024, 1025, 8197}) {
        for (const std::optional<DType> model : {std::optional<DType>(), std::optional(DType::f32),
                                                 std::optional(DType::bf16), std::optional(DType::f16)}) {
            const AdamStep step = example_step(number++ % 2 == 0);
            CAPTURE(count, model ? tessera::name_of(*model) : "none", step.decoupled);
            const State state(random, count);
            const auto results =
                in_every_order([&](simt::Stream stream) { return step_range(stream, state, 0, count, model, step); });
            Tensor w = exactly(state.w);
            Tensor m = exactly(state.m);
            Tensor v = exactly(state.v);
            make_reference_ops(DType::f64)->adam(w, m, v, exactly(state.gradient), Matrix(), step);
            require_close("m", results[1], m, 4 * kUnit, 4 * kUnit);
            require_close("v", results[2], v, 8 * kUnit, 8 * kUnit);
            // The weight's rounding, and an update whose mean and root have such errors: near 0 they count more.
            require_close("w", results[0], w, 4 * kUnit, 1e-2 * 100 * kUnit);
            if (model) {
                CHECK(results[3] == results[0].as(*model));
            }
        }
    }
}

TEST_CASE("An element gives the same bits wherever its range begins") {
    std::mt19937 random(2);
    constexpr std::int64_t kCount = 700;
    const State state(random, kCount);
    AdamStep step = example_step(true);
    for (const bool stochastic : {false, true}) {
        if (stochastic) {
            step.rounding = {.key = 5, .step = 3, .first = 1000};
        }
        const simt::OwnStream stream;
        const auto whole = step_range(stream, state, 0, kCount, DType::bf16, step);
        for (const auto& [first, count] :
             {std::pair<std::int64_t, std::int64_t>{1, 699}, {4, 33}, {6, 600}, {699, 1}}) {
            CAPTURE(stochastic, first, count);
            const auto part = step_range(stream, state, first, count, DType::bf16, step);
            for (std::size_t i = 0; i < part.size(); ++i) {
                CHECK(columns(part[i], first, count) == columns(whole[i], first, count));
            }
            // Outside the range nothing is written.
            CHECK(columns(part[0], 0, first) == columns(state.w, 0, first));
            // Nor does it matter where the model's weights lie.
            CHECK(step_range(stream, state, first, count, DType::bf16, step, Layout::misaligned) == part);
            CHECK(columns(part[2], first + count, kCount - first - count) ==
                  columns(state.v, first + count, kCount - first - count));
        }
    }
}

/// The model's weights of a step with a gradient of 0, from the state (w, m, 0).
Tensor rounded(const Tensor& w, const Tensor& m, const StochasticRounding& rounding) {
    const std::int64_t count = w.cols();
    const simt::OwnStream stream;
    const DeviceMatrix weights(w, Layout::packed);
    const DeviceMatrix means(m, Layout::packed);
    const DeviceMatrix v(Tensor(DType::f32, 1, count), Layout::packed);
    const DeviceMatrix gradient(Tensor(DType::f32, 1, count), Layout::packed);
    const DeviceMatrix model(Tensor(DType::bf16, 1, count), Layout::packed);
    cuda::adam(stream, weights, means, v, gradient, model, {.lr = 1e-3, .rounding = rounding});
    return model.read();
}
/// The same of a step that changes nothing.
Tensor rounded(const Tensor& w, const StochasticRounding& rounding) {
    return rounded(w, Tensor(DType::f32, 1, w.cols()), rounding);
}

TEST_CASE("Stochastic rounding goes to either neighbour, as often as its distance says, and by key, step and place") {
    constexpr std::int64_t kCount = 40000;
    Tensor w(DType::f32, 1, kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
        w.set(0, i, (i % 2 == 0 ? 1 : -1) * (1 + 0.3 / 128));  // three tenths of the way from 1 to the next bf16
    }
    const Tensor first = rounded(w, {.key = 1, .step = 1});
    std::int64_t farther = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
        const double size = std::abs(first.get(0, i));
        REQUIRE((size == 1 || size == 1 + 1.0 / 128));
        REQUIRE((first.get(0, i) > 0) == (i % 2 == 0));
        farther += size > 1 ? 1 : 0;
    }
    // A binomial distribution: five standard deviations.
    CHECK(std::abs(static_cast<double>(farther) - 0.3 * kCount) < 5 * std::sqrt(0.3 * 0.7 * kCount));
    CHECK(rounded(w, {.key = 1, .step = 1}) == first);
    CHECK_FALSE(rounded(w, {.key = 2, .step = 1}) == first);
    CHECK_FALSE(rounded(w, {.key = 1, .step = 2}) == first);
    CHECK_FALSE(rounded(w, {.key = 1, .step = 1, .first = 2}) == first);
}

TEST_CASE("What bf16 holds stays as it is under stochastic rounding, and so do infinities and NaNs") {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double expected[] = {0, -0.5, 3, kInfinity, -kInfinity, std::nan("")};
    Tensor w(DType::f32, 1, 6);
    Tensor m(DType::f32, 1, 6);
    for (std::int64_t i = 0; i < 6; ++i) {
        w.set(0, i, std::isinf(expected[i]) ? 1 : expected[i]);
        m.set(0, i, std::isinf(expected[i]) ? -std::copysign(1e38, expected[i]) : 0);  // over eps: beyond f32
    }
    constexpr std::uint32_t kLargestNan = 0x7fffffffu;  // whatever were added to these bits would overflow
    std::memcpy(Matrix(w).data + 5 * sizeof(float), &kLargestNan, sizeof(float));
    for (std::uint64_t key = 0; key < 20; ++key) {
        const Tensor result = rounded(w, m, {.key = key, .step = 1});
        for (std::int64_t i = 0; i < 5; ++i) {
            CHECK(result.get(0, i) == expected[i]);
        }
        CHECK(std::isnan(result.get(0, 5)));
    }
}

}  // namespace
}  // namespace tessera
