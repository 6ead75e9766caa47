// Rotary embedding and SwiGLU on the device, against double.
#include <cmath>

#include "kernels/cuda/rope.h"
#include "kernels/cuda/swiglu.h"
#include "kernels/reference/reference_ops.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera {
namespace {

using namespace testing;

TEST_CASE("Rope agrees with double and its inverse turns back") {
    std::mt19937 random(1);
    struct Shape {
        std::int64_t tokens;
        std::int64_t heads;
        std::int64_t head_dim;
    };
    for (const Shape shape : {Shape{1, 1, 2}, Shape{3, 5, 6}, Shape{33, 2, 16}, Shape{7, 3, 64}, Shape{5, 2, 128}}) {
        const std::int64_t width = shape.heads * shape.head_dim;
        const std::int64_t half = shape.head_dim / 2;
        constexpr std::int64_t kPositions = 50;
        Tensor cosines(DType::f32, kPositions, half);
        Tensor sines(DType::f32, kPositions, half);
        for (std::int64_t p = 0; p < kPositions; ++p) {
            for (std::int64_t i = 0; i < half; ++i) {
                const double angle = static_cast<double>(p) * std::pow(10.0, -static_cast<double>(i) / 8);
                cosines.set(p, i, std::cos(angle));
                sines.set(p, i, std::sin(angle));
            }
        }
        const Tensor exact_cosines = exactly(cosines);
        const Tensor exact_sines = exactly(sines);
        const std::vector<std::int32_t> positions = random_indices(random, shape.tokens, kPositions);
        for (const DType dtype : kStorageTypes) {
            for (const Layout layout : kLayouts) {
                for (const bool inverse : {false, true}) {
                    CAPTURE(shape.tokens, shape.heads, shape.head_dim, tessera::name_of(dtype),
                            testing::name_of(layout), inverse);
                    const Tensor before = random_tensor(random, dtype, shape.tokens, width);
                    const auto results = in_every_order([&](simt::Stream stream) {
                        const DeviceMatrix x(before, layout);
                        // Where x can be read as vectors, the tables cannot always be.
                        const DeviceMatrix cos(cosines, inverse ? Layout::misaligned : layout);
                        const DeviceMatrix sin(sines, layout);
                        const simt::DeviceArray<std::int32_t> places(positions);
                        cuda::rope(stream, x, {cos, sin}, places.data(), shape.head_dim, inverse);
                        return std::vector<Tensor>{x.read()};
                    });
                    Tensor x_exact = exactly(before);
                    make_reference_ops(DType::f64)
                        ->rope(x_exact, {exact_cosines, exact_sines}, positions, shape.head_dim, inverse);
                    // Two products below 10 and their sum.
                    require_close("x", results[0], x_exact, unit_roundoff(dtype), 10 * 3 * kUnit);
                }
            }
        }
    }
}

TEST_CASE("SwiGLU agrees with double, also for gates far from 0, in place and not") {
    std::mt19937 random(2);
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1},   {3, 7},   {33, 8},
                                                                 {5, 255}, {2, 576}, {1, 1023}};
    for (const auto& [tokens, inner] : kShapes) {
        for (const DType dtype : kStorageTypes) {
            for (const Layout layout : kLayouts) {
                for (const double scale : {2.0, 60.0}) {
                    CAPTURE(tokens, inner, tessera::name_of(dtype), testing::name_of(layout), scale);
                    const Tensor gate_up = random_tensor(random, dtype, tokens, 2 * inner, scale);
                    const Tensor dact = random_tensor(random, dtype, tokens, inner);
                    const auto results = in_every_order([&](simt::Stream stream) {
                        const DeviceMatrix input(gate_up, layout);
                        const DeviceMatrix act(Tensor(dtype, tokens, inner), layout);
                        const DeviceMatrix output_gradient(dact, layout);
                        const DeviceMatrix gradient(Tensor(dtype, tokens, 2 * inner), layout);
                        cuda::swiglu_forward(stream, act, input);
                        cuda::swiglu_backward(stream, gradient, output_gradient, input);
                        cuda::swiglu_backward(stream, input, output_gradient, input);  // over its argument
                        return std::vector<Tensor>{act.read(), gradient.read(), input.read()};
                    });
                    Tensor act_exact(DType::f64, tokens, inner);
                    Tensor gradient_exact(DType::f64, tokens, 2 * inner);
                    const std::unique_ptr<Ops> exact = make_reference_ops(DType::f64);
                    exact->swiglu_forward(act_exact, exactly(gate_up));
                    exact->swiglu_backward(gradient_exact, exactly(dact), exactly(gate_up));
                    // In f32 an exponential within 2 units, a sum, a quotient and products; for 16 bits one whose
                    // exponent is rounded: units as many as the gate is large. Small numbers have fewer bits, and below
                    // e^-87 there are none.
                    const double relative = dtype == DType::f32 ? 6 * kUnit : 5 * scale * kUnit;
                    const double tiny = dtype == DType::f16 ? 0x1p-24 : 1e-30;
                    require_close("act", results[0], act_exact, unit_roundoff(dtype) + relative, tiny);
                    // silu' is a sum of terms up to 0.3 that cancel near the gate -1.28; dact and up are below 5 times
                    // their size.
                    require_close("dgate_up", results[1], gradient_exact, unit_roundoff(dtype) + relative + 2 * kUnit,
                                  25 * scale * 4 * kUnit + tiny);
                    CHECK(results[2] == results[1]);
                }
            }
        }
    }
}

}  // namespace
}  // namespace tessera
