// Moving, converting, adding and scaling on the device, against double.
#include "kernels/cuda/elementwise.h"

#include <algorithm>
#include <numeric>

#include "kernels/cuda/embedding.h"
#include "kernels/reference/reference_ops.h"
#include "test/kernels/cuda/device_matrix.h"

namespace tessera {
namespace {

using namespace testing;

constexpr std::pair<std::int64_t, std::int64_t> kShapes[] = {{1, 1}, {3, 7}, {1, 1023}, {33, 8}, {5, 255}, {2, 1025}};

TEST_CASE("Zero, copy, add and scale agree with double for every type and layout") {
    std::mt19937 random(1);
    for (const auto& [rows, cols] : kShapes) {
        for (const Layout layout : kLayouts) {
            for (const DType dtype : kStorageTypes) {
                CAPTURE(rows, cols, testing::name_of(layout), tessera::name_of(dtype));
                const Tensor a = random_tensor(random, dtype, rows, cols, 100);
                const Tensor b = random_tensor(random, dtype, rows, cols, 100);
                const auto results = in_every_order([&](simt::Stream stream) {
                    const DeviceMatrix left(a, layout);
                    const DeviceMatrix right(b, layout == Layout::packed ? Layout::padded : layout);
                    const DeviceMatrix sum(Tensor(dtype, rows, cols), layout);
                    cuda::add(stream, sum, left, right);
                    cuda::add(stream, right, left, right);  // in place
                    cuda::scale(stream, left, -0.37);
                    const DeviceMatrix zeros(a, layout);
                    cuda::zero(stream, zeros);
                    return std::vector<Tensor>{sum.read(), right.read(), left.read(), zeros.read()};
                });
                Tensor sum_exact(DType::f64, rows, cols);
                Tensor scaled_exact(DType::f64, rows, cols);
                for (std::int64_t r = 0; r < rows; ++r) {
                    for (std::int64_t c = 0; c < cols; ++c) {
                        sum_exact.set(r, c, a.get(r, c) + b.get(r, c));
                        scaled_exact.set(r, c, a.get(r, c) * static_cast<double>(-0.37F));
                    }
                }
                const double rounding = unit_roundoff(dtype) + kUnit;
                require_close("sum", results[0], sum_exact, rounding, 1e-7);
                CHECK(results[1] == results[0]);
                require_close("scaled", results[2], scaled_exact, rounding, 1e-7);
                CHECK(results[3] == Tensor(dtype, rows, cols));
                for (const DType to : kStorageTypes) {
                    const auto copies = in_every_order([&](simt::Stream stream) {
                        const DeviceMatrix source(a, layout);
                        const DeviceMatrix target(Tensor(to, rows, cols), layout);
                        const DeviceMatrix packed(Tensor(to, rows, cols), Layout::packed);
                        cuda::copy(stream, target, source);
                        cuda::copy(stream, packed, source);
                        REQUIRE(packed.read() == target.read());
                        return std::vector<Tensor>{target.read()};
                    });
                    CHECK(copies[0] == a.as(to));
                }
            }
        }
    }
}

TEST_CASE("Long contiguous vectors, and what cannot be walked as one") {
    std::mt19937 random(2);
    for (const std::int64_t count : {std::int64_t{1024}, std::int64_t{65537}}) {
        const Tensor a = random_tensor(random, DType::f32, 1, count);
        const auto results = in_every_order([&](simt::Stream stream) {
            const DeviceMatrix source(a, Layout::packed);
            const DeviceMatrix target(Tensor(DType::bf16, 1, count), Layout::misaligned);
            cuda::copy(stream, target, source);
            return std::vector<Tensor>{target.read()};
        });
        CHECK(results[0] == a.as(DType::bf16));
    }
}

TEST_CASE("A copy keeps the bits of what is no number") {
    for (const DType dtype : kStorageTypes) {
        Tensor a(dtype, 1, 9);
        std::memset(Matrix(a).data, 0xff, static_cast<std::size_t>(9 * size_of(dtype)));
        const simt::OwnStream stream;
        const DeviceMatrix source(a, Layout::packed);
        const DeviceMatrix target(Tensor(dtype, 1, 9), Layout::packed);
        cuda::copy(stream, target, source);
        CHECK(target.read() == a);
    }
}

/// Places sorted stably by index.
std::vector<std::int32_t> order_of(const std::vector<std::int32_t>& indices) {
    std::vector<std::int32_t> order(indices.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return indices[static_cast<std::size_t>(a)] < indices[static_cast<std::size_t>(b)];
    });
    return order;
}

TEST_CASE("Rows are gathered, and added one after another in ascending order") {
    std::mt19937 random(3);
    struct Case {
        std::int64_t tokens;
        std::int64_t vocabulary;
        std::int64_t hidden;
    };
    for (const Case c : {Case{1, 1, 1}, Case{33, 5, 8}, Case{70, 200, 33}, Case{40, 3, 264}}) {
        for (const Layout layout : kLayouts) {
            for (const DType dtype : kStorageTypes) {
                CAPTURE(c.tokens, c.vocabulary, c.hidden, testing::name_of(layout), tessera::name_of(dtype));
                const std::vector<std::int32_t> ids = random_indices(random, c.tokens, c.vocabulary);
                const std::vector<std::int32_t> order = order_of(ids);
                std::vector<std::int32_t> sorted;
                for (const std::int32_t place : order) {
                    sorted.push_back(ids[static_cast<std::size_t>(place)]);
                }
                const Tensor table = random_tensor(random, dtype, c.vocabulary, c.hidden);
                const Tensor dout = random_tensor(random, dtype, c.tokens, c.hidden);
                const Tensor dtable = random_tensor(random, DType::f32, c.vocabulary, c.hidden);
                const auto results = in_every_order([&](simt::Stream stream) {
                    const simt::DeviceArray<std::int32_t> device_ids(ids);
                    const simt::DeviceArray<std::int32_t> device_order(order);
                    const simt::DeviceArray<std::int32_t> device_sorted(sorted);
                    const DeviceMatrix rows(table, layout);
                    const DeviceMatrix gradient(dout, layout);
                    const DeviceMatrix out(Tensor(dtype, c.tokens, c.hidden), layout);
                    const DeviceMatrix sums(dtable, layout);
                    cuda::embedding_forward(stream, out, rows, device_ids.data());
                    cuda::embedding_backward(stream, sums, gradient, device_order.data(), device_sorted.data());
                    Tensor gathered = out.read();
                    cuda::scatter_add_rows(stream, rows, gradient, device_order.data(), device_sorted.data());
                    return std::vector<Tensor>{gathered, sums.read(), rows.read()};
                });
                // The same additions in the same order, each rounded: the same bits.
                Tensor gathered(dtype, c.tokens, c.hidden);
                Tensor sums = dtable;
                Tensor scattered = table;
                for (std::int64_t t = 0; t < c.tokens; ++t) {
                    const std::int32_t row = ids[static_cast<std::size_t>(t)];
                    for (std::int64_t i = 0; i < c.hidden; ++i) {
                        const auto addend = static_cast<float>(dout.get(t, i));
                        gathered.set(t, i, table.get(row, i));
                        sums.set(row, i, static_cast<float>(sums.get(row, i)) + addend);
                        scattered.set(row, i, static_cast<float>(scattered.get(row, i)) + addend);
                    }
                }
                CHECK(results[0] == gathered);
                CHECK(results[1] == sums);
                CHECK(results[2] == scattered);
            }
        }
    }
}

}  // namespace
}  // namespace tessera
