// RMSNorm on the device, against double.
#include "kernels/cuda/rmsnorm.h"

#include <cmath>

#include "kernels/reference/reference_ops.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera {
namespace {

using namespace testing;

struct Shape {
    std::int64_t tokens;
    std::int64_t groups;
    std::int64_t cols;
};

/// Lanes of a warp, whole warps and whole blocks; rows that end within a vector; more groups than a block has teams; a
/// row of which registers hold only a part.
constexpr Shape kShapes[] = {{1, 1, 1},   {3, 2, 7},    {33, 3, 8},    {5, 4, 64},   {67, 2, 33},  {3, 1, 255},
                             {2, 2, 576}, {3, 1, 1000}, {20, 1, 1032}, {2, 2, 1100}, {2, 1, 4100}, {1, 1, 8200}};

void check_forward(std::mt19937& random, const Shape& shape, DType dtype, Layout layout, bool adds, double scale) {
    const std::int64_t width = shape.groups * shape.cols;
    const double eps = 1e-6;
    const Tensor x = random_tensor(random, dtype, shape.tokens, width, scale);
    const Tensor delta = adds ? random_tensor(random, dtype, shape.tokens, width, scale) : Tensor();
    const Tensor weight = random_tensor(random, dtype, 1, shape.cols);
    const auto results = in_every_order([&](simt::Stream stream) {
        const DeviceMatrix sum(x, layout);  // over x
        const DeviceMatrix other(delta, layout);
        const DeviceMatrix scales(weight, Layout::packed);
        const DeviceMatrix y(Tensor(dtype, shape.tokens, width), layout);
        const DeviceMatrix rstd(Tensor(DType::f32, shape.tokens, shape.groups), layout);
        cuda::add_rmsnorm_forward(stream, y, rstd, sum, sum, other, scales, eps);
        std::vector<Tensor> in_place{sum.read(), rstd.read(), y.read()};
        const DeviceMatrix input(x, layout);
        const DeviceMatrix apart(x, layout);
        cuda::add_rmsnorm_forward(stream, y, rstd, apart, input, other, scales, eps);
        REQUIRE(std::vector<Tensor>{apart.read(), rstd.read(), y.read()} == in_place);
        REQUIRE(input.read() == x);
        return in_place;
    });
    const std::unique_ptr<Ops> exact = make_reference_ops(DType::f64);
    const double rounding = unit_roundoff(dtype);
    const Tensor& sum = results[0];
    if (adds) {
        Tensor sum_exact(DType::f64, shape.tokens, width);
        exact->add(sum_exact, exactly(x), exactly(delta));
        require_close("sum", sum, sum_exact, rounding, scale * 1e-7);
    } else {
        CHECK(sum == x);
    }
    // From the rounded sum on. A thread adds up to 40 squares, and 8 + log2(256) sums of threads are added: half as
    // many units in the root.
    Tensor y_exact(DType::f64, shape.tokens, width);
    Tensor rstd_exact(DType::f64, shape.tokens, shape.groups);
    exact->add_rmsnorm_forward(y_exact, rstd_exact, Tensor(), exactly(sum), Tensor(), exactly(weight), eps);
    require_close("rstd", results[1], rstd_exact, 32 * kUnit, 0);
    // Two roundings to S, after each product.
    Tensor y(dtype, shape.tokens, width);
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
        for (std::int64_t c = 0; c < width; ++c) {
            const auto rstd = static_cast<float>(results[1].get(t, c / shape.cols));
            y.set(t, c, static_cast<float>(sum.get(t, c)) * rstd);
            y.set(t, c, static_cast<float>(y.get(t, c)) * static_cast<float>(weight.get(0, c % shape.cols)));
        }
    }
    CHECK(results[2] == y);
    const double tiny = dtype == DType::f16 ? 0x1p-22 : 0;  // below 2^-14 it has fewer bits
    require_close("y", results[2], y_exact, 2.01 * rounding + 34 * kUnit, tiny);
}

void check_backward(std::mt19937& random, const Shape& shape, DType dtype, Layout layout, bool has_residual) {
    const std::int64_t width = shape.groups * shape.cols;
    const Tensor x = random_tensor(random, dtype, shape.tokens, width);
    const Tensor dy = random_tensor(random, dtype, shape.tokens, width);
    const Tensor residual = has_residual ? random_tensor(random, dtype, shape.tokens, width) : Tensor();
    const Tensor weight = random_tensor(random, dtype, 1, shape.cols);
    const Tensor dweight = random_tensor(random, DType::f32, 1, shape.cols);
    Tensor rstd(DType::f32, shape.tokens, shape.groups);
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
        for (std::int64_t g = 0; g < shape.groups; ++g) {
            double squares = 0;
            for (std::int64_t c = 0; c < shape.cols; ++c) {
                squares += std::pow(x.get(t, g * shape.cols + c), 2);
            }
            rstd.set(t, g, 1 / std::sqrt(squares / static_cast<double>(shape.cols) + 1e-6));
        }
    }
    const auto run = [&](simt::Stream stream, const DeviceMatrix& dx, const DeviceMatrix& gradient) {
        const DeviceMatrix input(x, layout);
        const DeviceMatrix output_gradient(dy, layout);
        const DeviceMatrix scales(weight, Layout::packed);
        const DeviceMatrix factors(rstd, layout);
        const DeviceWorkspace workspace(
            cuda::rmsnorm_backward_workspace_bytes(shape.tokens * shape.groups, shape.cols));
        // In place: over the residual, or over dy.
        cuda::rmsnorm_backward(stream, dx, gradient, has_residual ? dx.view() : Matrix(),
                               has_residual ? output_gradient : dx, input, factors, scales, workspace.span());
        return dx.read();
    };
    const auto results = in_every_order([&](simt::Stream stream) {
        const DeviceMatrix dx(has_residual ? residual : dy, layout);
        const DeviceMatrix gradient(dweight, Layout::packed);
        Tensor result = run(stream, dx, gradient);
        const DeviceMatrix dx_only(has_residual ? residual : dy, layout);
        const Tensor without_weight = run(stream, dx_only, DeviceMatrix());
        REQUIRE(without_weight == result);
        return std::vector<Tensor>{result, gradient.read()};
    });
    Tensor dx_exact(DType::f64, shape.tokens, width);
    Tensor dweight_exact = exactly(dweight);
    make_reference_ops(DType::f64)
        ->rmsnorm_backward(dx_exact, dweight_exact, has_residual ? exactly(residual) : Tensor(), exactly(dy),
                           exactly(x), exactly(rstd), exactly(weight));
    // rstd times a difference of terms of the size weight * dy, below 25, and of a mean of such terms with its sum's
    // roundings. One column has a normed value of 1 and two terms that cancel, times a large rstd.
    double largest = 0;
    for (std::int64_t t = 0; t < shape.tokens; ++t) {
        for (std::int64_t g = 0; g < shape.groups; ++g) {
            largest = std::max(largest, rstd.get(t, g));
        }
    }
    require_close("dx", results[0], dx_exact, unit_roundoff(dtype) + 2 * kUnit,
                  (20 * 25 * largest + 8) * kUnit + (dtype == DType::f16 ? 0x1p-24 : 0));
    const auto terms = static_cast<double>(shape.tokens * shape.groups);
    require_close("dweight", results[1], dweight_exact, 0, 25 * 4 * kUnit * (1 + std::sqrt(terms)));
}

TEST_CASE("RMSNorm agrees with double: rows, heads, sums, types, layouts") {
    std::mt19937 random(1);
    int number = 0;
    for (const Shape& shape : kShapes) {
        for (const DType dtype : kStorageTypes) {
            for (const Layout layout : kLayouts) {
                const double scale = std::pow(10.0, number % 5 - 2);
                CAPTURE(shape.tokens, shape.groups, shape.cols, tessera::name_of(dtype), testing::name_of(layout));
                check_forward(random, shape, dtype, layout, number++ % 2 == 0, scale);
            }
        }
    }
}

TEST_CASE("The gradient of RMSNorm agrees with double, in place over the residual or over dy") {
    std::mt19937 random(2);
    int number = 0;
    for (const Shape& shape : kShapes) {
        for (const DType dtype : kStorageTypes) {
            for (const Layout layout : kLayouts) {
                CAPTURE(shape.tokens, shape.groups, shape.cols, tessera::name_of(dtype), testing::name_of(layout));
                check_backward(random, shape, dtype, layout, number++ % 2 == 0);
            }
        }
    }
}

TEST_CASE("A row too long for shared memory sums the gradient of its weight in the workspace") {
    std::mt19937 random(3);
    check_backward(random, {9, 1, 12300}, DType::bf16, Layout::packed, true);
}

TEST_CASE("Where a matrix lies does not change a bit of RMSNorm") {
    std::mt19937 random(4);
    const Tensor x = random_tensor(random, DType::bf16, 9, 2 * 72);
    const Tensor dy = random_tensor(random, DType::bf16, 9, 2 * 72);
    const Tensor weight = random_tensor(random, DType::bf16, 1, 72);
    std::vector<std::vector<Tensor>> results;
    for (const Layout layout : kLayouts) {
        const simt::OwnStream stream;
        const DeviceMatrix input(x, layout);
        const DeviceMatrix gradient(dy, layout);
        const DeviceMatrix scales(weight, Layout::packed);
        const DeviceMatrix y(Tensor(DType::bf16, 9, 2 * 72), layout);
        const DeviceMatrix rstd(Tensor(DType::f32, 9, 2), layout);
        const DeviceMatrix dweight(Tensor(DType::f32, 1, 72), Layout::packed);
        const DeviceWorkspace workspace(cuda::rmsnorm_backward_workspace_bytes(18, 72));
        cuda::add_rmsnorm_forward(stream, y, rstd, {}, input, {}, scales, 1e-5);
        cuda::rmsnorm_backward(stream, gradient, dweight, {}, gradient, input, rstd, scales, workspace.span());
        results.push_back({y.read(), rstd.read(), gradient.read(), dweight.read()});
    }
    CHECK(results[1] == results[0]);
    CHECK(results[2] == results[0]);
}

}  // namespace
}  // namespace tessera
