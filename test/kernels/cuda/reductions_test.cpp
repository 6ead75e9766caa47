// Sums over rows, columns and vectors on the device, against double.
#include "kernels/cuda/reductions.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/column_sums.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera {
namespace {

using namespace testing;

/// Bound of the error of a sum in f32 of normally distributed numbers, with partial sums below 5 sqrt(terms).
double sum_error(std::int64_t terms) {
    const auto n = static_cast<double>(terms);
    return 5 * kUnit * (2 + n / 64) * (1 + std::sqrt(n));
}

Tensor column_sums(const Tensor& x, const Tensor& start) {
    Tensor sums(DType::f64, 1, x.cols());
    for (std::int64_t c = 0; c < x.cols(); ++c) {
        double sum = start.get(0, c);
        for (std::int64_t r = 0; r < x.rows(); ++r) {
            sum += x.get(r, c);
        }
        sums.set(0, c, sum);
    }
    return sums;
}

TEST_CASE("Column sums agree with double, in one pass and in two, and lie where they may") {
    std::mt19937 random(1);
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1},    {3, 7},   {33, 64},  {16, 255},
                                                                 {512, 33}, {513, 9}, {1300, 5}, {700, 130}};
    for (const auto& [rows, cols] : kShapes) {
        for (const DType dtype : kStorageTypes) {
            CAPTURE(rows, cols, tessera::name_of(dtype));
            const Tensor x = random_tensor(random, dtype, rows, cols);
            const Tensor start = random_tensor(random, DType::f32, 1, cols);
            std::vector<Tensor> of_layouts;
            for (const Layout layout : kLayouts) {
                const auto results = in_every_order([&](simt::Stream stream) {
                    const DeviceMatrix gradient(x, layout);
                    const DeviceMatrix sums(start, Layout::packed);
                    const DeviceWorkspace workspace(cuda::column_sums_workspace_bytes(rows, cols));
                    cuda::bias_backward(stream, sums, gradient, workspace.span());
                    return std::vector<Tensor>{sums.read()};
                });
                of_layouts.push_back(results[0]);
            }
            require_close("sums", of_layouts[0], column_sums(x, start), 0, sum_error(rows));
            CHECK(of_layouts[1] == of_layouts[0]);
            CHECK(of_layouts[2] == of_layouts[0]);
        }
    }
}

TEST_CASE("Sums of rows are taken in their order, also over the first row") {
    std::mt19937 random(2);
    constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1}, {3, 7}, {8, 1024}, {4, 2049}, {2, 65537}};
    for (const auto& [rows, cols] : kShapes) {
        for (const DType dtype : kStorageTypes) {
            for (const Layout layout : kLayouts) {
                for (const bool add : {false, true}) {
                    CAPTURE(rows, cols, tessera::name_of(dtype), testing::name_of(layout), add);
                    const Tensor pieces = random_tensor(random, dtype, rows, cols);
                    const Tensor start = random_tensor(random, DType::f32, 1, cols);
                    const auto results = in_every_order([&](simt::Stream stream) {
                        const DeviceMatrix addends(pieces, layout);
                        const DeviceMatrix y(start, layout);
                        cuda::sum_rows(stream, y, addends, add);
                        if (dtype == DType::f32 && !add) {
                            const Matrix first = addends.view().row_range(0, 1);
                            cuda::sum_rows(stream, first, addends, false);
                            REQUIRE(addends.read().rows_from(0, 1) == y.read());
                        }
                        return std::vector<Tensor>{y.read()};
                    });
                    Tensor expected(DType::f32, 1, cols);
                    for (std::int64_t c = 0; c < cols; ++c) {
                        auto sum = static_cast<float>(pieces.get(0, c));
                        sum = add ? static_cast<float>(start.get(0, c)) + sum : sum;
                        for (std::int64_t r = 1; r < rows; ++r) {
                            sum += static_cast<float>(pieces.get(r, c));
                        }
                        expected.set(0, c, sum);
                    }
                    CHECK(results[0] == expected);
                }
            }
        }
    }
}

TEST_CASE("Squares are summed in double, in an order that the place in memory does not change") {
    std::mt19937 random(3);
    for (const std::int64_t count : {1, 3, 1023, 1024, 1025, 65537}) {
        // The square of 1e30 is beyond f32, and those of others are nothing beside it.
        const double middle = count % 2 == 0 ? 1e30 : 1;
        CAPTURE(count);
        Tensor x = random_tensor(random, DType::f32, 1, count);
        x.set(0, count / 2, middle);
        long double expected = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            expected += static_cast<long double>(x.get(0, i)) * static_cast<long double>(x.get(0, i));
        }
        std::vector<double> of_layouts;
        for (const Layout layout : {Layout::packed, Layout::misaligned}) {
            const auto results = in_every_order([&](simt::Stream stream) {
                const DeviceMatrix values(x, layout);
                const simt::DeviceArray<double> sum(1);
                const DeviceWorkspace workspace(cuda::reduction_workspace_bytes());
                cuda::squared_norm(stream, sum.data(), values, false, workspace.span());
                cuda::squared_norm(stream, sum.data(), values, true, workspace.span());
                cuda::squared_norm(stream, sum.data(), {}, true, workspace.span());
                Tensor result(DType::f64, 1, 1);
                result.set(0, 0, sum.read()[0]);
                return std::vector<Tensor>{result};
            });
            of_layouts.push_back(results[0].get(0, 0));
        }
        CHECK(of_layouts[0] == Approx(static_cast<double>(2 * expected)).epsilon(1e-14));
        CHECK(of_layouts[1] == of_layouts[0]);
    }
    const simt::OwnStream stream;
    const simt::DeviceArray<double> sum(1);
    const DeviceWorkspace workspace(cuda::reduction_workspace_bytes());
    cuda::squared_norm(stream, sum.data(), {}, false, workspace.span());
    CHECK(sum.read()[0] == 0);
}

TEST_CASE("What is not finite is counted, wherever it is") {
    std::mt19937 random(4);
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 33}, {1, 65537}, {40, 255}}) {
        for (const DType dtype : kStorageTypes) {
            for (const Layout layout : kLayouts) {
                CAPTURE(rows, cols, tessera::name_of(dtype), testing::name_of(layout));
                Tensor x = random_tensor(random, dtype, rows, cols);
                x.set(0, 0, std::numeric_limits<double>::infinity());
                x.set(rows - 1, cols - 1, std::nan(""));
                x.set(rows / 2, cols / 2, -std::numeric_limits<double>::infinity());
                const std::int64_t expected = rows * cols == 1 ? 1 : 3;
                const auto results = in_every_order([&](simt::Stream stream) {
                    const DeviceMatrix values(x, layout);
                    const simt::DeviceArray<std::int64_t> count(std::vector<std::int64_t>{100});
                    const DeviceWorkspace workspace(cuda::reduction_workspace_bytes());
                    cuda::count_non_finite(stream, count.data(), values, workspace.span());
                    Tensor result(DType::f64, 1, 1);
                    result.set(0, 0, static_cast<double>(count.read()[0]));
                    return std::vector<Tensor>{result};
                });
                CHECK(results[0].get(0, 0) == static_cast<double>(100 + expected));
            }
        }
    }
}

}  // namespace
}  // namespace tessera
