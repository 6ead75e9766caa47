// Log-probs, entropy and the gradient of cross-entropy on the device, against double.
#include "kernels/cuda/cross_entropy.h"

#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera {
namespace {

using namespace testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
    std::int64_t rows;
    std::int64_t vocabulary;
};
/// Up to more than one step of a block, and one element beyond it.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {33, 8}, {3, 255}, {2, 1000}, {2, 4096}, {3, 4097}, {1, 8229}};

std::vector<Tensor> run_log_probs(const Tensor& logits, const std::vector<std::int32_t>& targets, double temperature,
                                  Layout layout) {
    return in_every_order([&](simt::Stream stream) {
        const DeviceMatrix input(logits, layout);
        const simt::DeviceArray<std::int32_t> device_targets(targets);
        const DeviceMatrix log_probs(Tensor(DType::f32, 1, logits.rows()), Layout::packed);
        const DeviceMatrix without(Tensor(DType::f32, 1, logits.rows()), Layout::packed);
        const DeviceMatrix entropy(Tensor(DType::f32, 1, logits.rows()), Layout::packed);
        cuda::log_prob_forward(stream, log_probs, entropy, input, device_targets.data(), temperature);
        cuda::log_prob_forward(stream, without, {}, input, device_targets.data(), temperature);
        return std::vector<Tensor>{log_probs.read(), entropy.read(), without.read()};
    });
}

std::vector<Tensor> run_cross_entropy(const Tensor& logits, const std::vector<std::int32_t>& targets,
                                      const Tensor& weights, DType storage, Layout layout) {
    return in_every_order([&](simt::Stream stream) {
        const DeviceMatrix input(logits, layout);
        const simt::DeviceArray<std::int32_t> device_targets(targets);
        const DeviceMatrix factors(weights, Layout::packed);
        const DeviceMatrix log_probs(Tensor(DType::f32, 1, logits.rows()), Layout::packed);
        const Layout output = storage == DType::bf16 ? Layout::misaligned : layout;
        const DeviceMatrix dlogits(Tensor(storage, logits.rows(), logits.cols()), output);
        cuda::cross_entropy(stream, log_probs, dlogits, input, device_targets.data(), factors);
        Tensor gradient = dlogits.read();
        if (storage == DType::f32) {
            cuda::cross_entropy(stream, log_probs, input, input, device_targets.data(), factors);  // in place
            REQUIRE(input.read() == gradient);
        }
        return std::vector<Tensor>{log_probs.read(), std::move(gradient)};
    });
}

TEST_CASE("Log-probs, entropy and gradients agree with double, with logits of minus infinity") {
    std::mt19937 random(1);
    const std::unique_ptr<Ops> exact = make_reference_ops(DType::f64);
    int number = 0;
    for (const Shape& shape : kShapes) {
        for (const Layout layout : kLayouts) {
            const double scale = std::pow(10.0, number % 4 - 1);
            const double temperature = number++ % 3 == 0 ? 1 : 0.7;
            CAPTURE(shape.rows, shape.vocabulary, testing::name_of(layout), scale, temperature);
            Tensor logits = random_tensor(random, DType::f32, shape.rows, shape.vocabulary, scale);
            const std::vector<std::int32_t> targets = random_indices(random, shape.rows, shape.vocabulary);
            // Some threads see nothing else, but it is never the target's, or all.
            for (std::int64_t r = 0; r < shape.rows; ++r) {
                for (std::int64_t i = 0; i < shape.vocabulary; ++i) {
                    if ((i % 7 == 0 || i / 32 % 3 == 1) && i != targets[static_cast<std::size_t>(r)]) {
                        logits.set(r, i, -kInfinity);
                    }
                }
            }
            const auto results = run_log_probs(logits, targets, temperature, layout);
            Tensor exact_log_probs(DType::f64, 1, shape.rows);
            Tensor exact_entropy(DType::f64, 1, shape.rows);
            exact->log_prob_forward(exact_log_probs, exact_entropy, exactly(logits), targets, temperature);
            // z carries roundings of its size, which is below 5 scale / temperature.
            const double size = 5 * scale / temperature + std::log(static_cast<double>(shape.vocabulary));
            require_close("log_probs", results[0], exact_log_probs, 2 * kUnit, 4 * size * kUnit + 1e-7);
            require_close("entropy", results[1], exact_entropy, 8 * kUnit, 8 * size * kUnit + 3e-7);
            CHECK(results[2] == results[0]);

            Tensor weights = random_tensor(random, DType::f32, 1, shape.rows);
            weights.set(0, 0, shape.rows > 1 ? 0 : 1.5);
            Tensor exact_dlogits(DType::f64, shape.rows, shape.vocabulary);
            exact->cross_entropy(exact_log_probs, exact_dlogits, exactly(logits), targets, exactly(weights));
            for (const DType storage : kStorageTypes) {
                CAPTURE(tessera::name_of(storage));
                const auto gradients = run_cross_entropy(logits, targets, weights, storage, layout);
                require_close("log_probs", gradients[0], exact_log_probs, 2 * kUnit, 4 * (5 * scale + 9) * kUnit);
                // A probability to the rounding of its exponent, and a weight below 5.
                require_close("dlogits", gradients[1], exact_dlogits,
                              unit_roundoff(storage) + 4 * (10 * scale + 9) * kUnit,
                              5 * 8 * kUnit + (storage == DType::f16 ? 0x1p-25 : 0));
                for (std::int64_t i = 0; i < shape.vocabulary && shape.rows > 1; ++i) {
                    REQUIRE(gradients[1].get(0, i) == 0);
                }
            }
        }
    }
}

TEST_CASE("Logits of any size, and a long vocabulary") {
    std::mt19937 random(2);
    const std::int64_t vocabulary = 50257;
    for (const double offset : {0.0, 1e4, -1e30}) {
        Tensor logits = random_tensor(random, DType::f32, 1, vocabulary, 3);
        for (std::int64_t i = 0; i < vocabulary; ++i) {
            logits.set(0, i, logits.get(0, i) + offset);
        }
        const std::vector<std::int32_t> targets = random_indices(random, 1, vocabulary);
        const auto results = run_log_probs(logits, targets, 1, Layout::packed);
        Tensor log_probs(DType::f64, 1, 1);
        Tensor entropy(DType::f64, 1, 1);
        make_reference_ops(DType::f64)->log_prob_forward(log_probs, entropy, exactly(logits), targets, 1);
        CAPTURE(offset);
        require_close("log_probs", results[0], log_probs, 0, 3e-6);  // units of a number near 16
        require_close("entropy", results[1], entropy, 0, 3e-6);
    }
}

TEST_CASE("A masked row has gradient exactly 0 even where its logits are not numbers") {
    Tensor weights(DType::f32, 1, 1);
    weights.set(0, 0, -0.0);
    for (const DType storage : kStorageTypes) {
        for (const double bad : {std::nan(""), kInfinity}) {
            Tensor logits(DType::f32, 1, 19);
            logits.set(0, 3, bad);
            const simt::OwnStream stream;
            const DeviceMatrix input(logits, Layout::packed);
            const simt::DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{4});
            const DeviceMatrix factors(weights, Layout::packed);
            const DeviceMatrix log_probs(Tensor(DType::f32, 1, 1), Layout::packed);
            const DeviceMatrix dlogits(Tensor(storage, 1, 19), Layout::packed);
            cuda::cross_entropy(stream, log_probs, dlogits, input, targets.data(), factors);
            CHECK(dlogits.read() == Tensor(storage, 1, 19));
            CHECK(std::isnan(log_probs.read().get(0, 0)));  // a number that is not one is not hidden
        }
    }
}

TEST_CASE("A NaN among logits of minus infinity is not hidden") {
    Tensor logits(DType::f32, 1, 9);
    for (std::int64_t i = 0; i < 9; ++i) {
        logits.set(0, i, i < 8 ? -kInfinity : 1);
    }
    logits.set(0, 2, std::nan(""));
    const simt::OwnStream stream;
    const DeviceMatrix input(logits, Layout::packed);
    const simt::DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{8});
    const DeviceMatrix log_probs(Tensor(DType::f32, 1, 1), Layout::packed);
    cuda::log_prob_forward(stream, log_probs, {}, input, targets.data(), 1);
    CHECK(std::isnan(log_probs.read().get(0, 0)));
}

}  // namespace
}  // namespace tessera
