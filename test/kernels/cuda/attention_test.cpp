// Attention of the device against the reference in double: every kernel, lengths and windows around the tiles, packing,
// grouping, strides, alignment, extreme scores, orders of threads.
#include "kernels/cuda/attention.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <tuple>

#include "test/kernels/cuda/attention_on_device.h"

namespace tessera {
namespace {

using simt::Order;
using testing::AttentionOnDevice;
using testing::Case;
using testing::Inputs;
using testing::largest_error;
using testing::largest_value;
using testing::Results;
using testing::Starts;
using testing::Tensor;
using testing::unit_roundoff;

constexpr DType kDTypes[] = {DType::bf16, DType::f16, DType::f32};

template <typename T>
std::span<const T> on_device(const simt::DeviceArray<T>& array) {
    return {array.data(), static_cast<std::size_t>(array.size())};
}

/// Both passes on the device.
Results run(const Case& c, const Inputs& inputs) {
    simt::set_emulation({.order = c.order, .seed = 7, .capability = 89, .truncate_mma = c.truncate});
    const AttentionShape shape = c.shape();
    const AttentionOnDevice on(c, inputs);
    const cuda::AttentionTileRows rows = cuda::attention_tile_rows(c.dtype, c.head_dim);
    const auto forward_tiles = cuda::attention_tiles(c.starts, rows.forward);
    const auto backward_tiles = cuda::attention_tiles(c.starts, rows.backward);
    const auto segments = static_cast<std::int64_t>(c.starts.size()) - 1;
    REQUIRE(static_cast<std::int64_t>(forward_tiles.size()) <=
            cuda::most_attention_tiles(c.tokens(), segments, rows.forward));
    const simt::DeviceArray<cuda::AttentionTile> forward(forward_tiles);
    const simt::DeviceArray<cuda::AttentionTile> backward(backward_tiles);
    const simt::DeviceArray<std::byte> workspace(cuda::attention_workspace_bytes(c.tokens(), c.heads));

    const simt::OwnStream stream;
    cuda::attention_forward(stream, on.out, on.lse, on.q, on.k, on.v, shape, on_device(forward));
    cuda::attention_backward(stream, on.dq, on.dk, on.dv, on.dout, on.q, on.k, on.v, on.out, on.lse, shape,
                             on_device(backward), {workspace.data(), static_cast<std::size_t>(workspace.size())});
    simt::synchronize(stream);
    return on.read();
}

void require_reference(const Case& c, unsigned seed = 1) {
    const Inputs inputs(c, seed);
    testing::require_as_good_as_plain(c, inputs, run(c, inputs));
}

/// The same bits in every order of threads and blocks.
void require_one_result(Case c, unsigned seed = 1) {
    CAPTURE(name_of(c.dtype), c.head_dim, c.starts, c.heads, c.kv_heads, c.window, c.columns_before);
    const Inputs inputs(c, seed);
    c.order = Order::forward;
    const Results forward = run(c, inputs);
    c.order = Order::reverse;
    CHECK(run(c, inputs) == forward);
    c.order = Order::random;
    CHECK(run(c, inputs) == forward);
}

Order order_of(std::int64_t number) {
    return number % 3 == 0 ? Order::forward : number % 3 == 1 ? Order::reverse : Order::random;
}

}  // namespace

TEST_CASE("Attention on the device agrees with the reference at every head size") {
    for (const DType dtype : kDTypes) {
        const std::int64_t length = dtype == DType::bf16 ? 70 : 40;
        for (const std::int64_t head_dim : {32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256}) {
            require_reference(
                {.dtype = dtype, .head_dim = head_dim, .starts = {0, length}, .order = order_of(head_dim / 8)});
        }
    }
}

TEST_CASE("Attention on the device is as good with the truncated sums of tensor cores") {
    require_reference({.head_dim = 64, .starts = {0, 70}, .truncate = true});
    require_reference({.dtype = DType::f16, .head_dim = 128, .starts = {0, 33}, .truncate = true});
}

TEST_CASE("Attention on the device agrees with the reference at every length around its tiles") {
    for (const DType dtype : kDTypes) {
        for (const std::int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 113, 128, 203, 217}) {
            require_reference({.dtype = dtype, .head_dim = 32, .starts = {0, length}, .order = order_of(length)});
        }
    }
    require_reference({.head_dim = 128, .starts = {0, 192}});
    require_reference({.head_dim = 256, .starts = {0, 65}});
}

TEST_CASE("Attention on the device sees what a window shows") {
    for (const DType dtype : kDTypes) {
        for (const std::int64_t window : {1, 2, 7, 32, 64, 65, 1000}) {
            require_reference(
                {.dtype = dtype, .head_dim = 64, .starts = {0, 150}, .window = window, .order = order_of(window)});
        }
        require_reference({.dtype = dtype, .head_dim = 64, .starts = {0, 250}, .window = 140});
        require_reference({.dtype = dtype, .head_dim = 128, .starts = {0, 130}, .window = 40});
        require_reference({.dtype = dtype, .head_dim = 200, .starts = {0, 70}, .window = 9});
    }
}

TEST_CASE("Attention on the device keeps packed documents apart, and takes groups of heads and any layout") {
    const Starts starts = {0, 0, 50, 50, 51, 83, 83};
    for (const DType dtype : kDTypes) {
        for (const auto& [heads, kv_heads, columns_before, window] :
             {std::tuple{1, 1, 1, 0}, {4, 1, 8, 0}, {6, 2, 8, 33}, {4, 4, 8, 20}}) {
            require_reference({.dtype = dtype,
                               .head_dim = 40,
                               .starts = starts,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .window = window,
                               .columns_before = columns_before,
                               .order = order_of(heads)});
        }
    }
    require_reference({.head_dim = 59, .starts = starts, .heads = 2, .columns_before = 3});
}

TEST_CASE("Attention on the device takes vectors only where address, stride and head size allow it") {
    for (const DType dtype : kDTypes) {
        const Case aligned{.dtype = dtype, .head_dim = 40, .starts = {0, 20}, .heads = 2, .kv_heads = 2};
        Case address = aligned;
        address.columns_before = 2;
        address.columns_behind = 6;
        require_reference(address);
        Case stride = aligned;
        stride.columns_behind = 2;
        require_reference(stride);
        Case head = aligned;
        head.head_dim = 38;
        head.heads = head.kv_heads = 4;
        require_reference(head);
        Case out = aligned;
        out.columns_before_out = 1;
        require_reference(out);
    }
}

TEST_CASE("A packed document has the bits of attention on the device on it alone") {
    for (const DType dtype : kDTypes) {
        const Case packed{.dtype = dtype, .head_dim = 64, .starts = {0, 5, 5, 85, 86}, .heads = 2, .window = 33};
        const Inputs inputs(packed, 3);
        const Results all = run(packed, inputs);
        Case alone = packed;
        alone.starts = {0, 80};
        Inputs own = inputs;
        for (Tensor* t : {&own.q, &own.k, &own.v, &own.dout}) {
            *t = t->rows_from(5, 80);
        }
        const Results one = run(alone, own);
        CHECK(all.out.rows_from(5, 80) == one.out);
        CHECK(all.lse.rows_from(5, 80) == one.lse);
        CHECK(all.dq.rows_from(5, 80) == one.dq);
        CHECK(all.dk.rows_from(5, 80) == one.dk);
        CHECK(all.dv.rows_from(5, 80) == one.dv);
    }
}

TEST_CASE("Attention on the device has one result in every order of threads and blocks") {
    for (const std::int64_t head_dim : {32, 64, 96, 128, 256}) {
        require_one_result({.head_dim = head_dim, .starts = {0, 20, 68}});
    }
    for (const std::int64_t head_dim : {64, 128, 256}) {
        require_one_result({.dtype = DType::f32, .head_dim = head_dim, .starts = {0, 20, 68}});
    }
    require_one_result({.dtype = DType::f16, .head_dim = 30, .starts = {0, 50}, .window = 20, .columns_before = 3});
}

TEST_CASE("Attention on the device stays finite for extreme scores") {
    for (const DType dtype : kDTypes) {
        for (const double scale : {1.0, -1.0, 20.0}) {  // scores of the order of 1e4 with the last one
            const Case c{.dtype = dtype, .head_dim = 64, .starts = {0, 83}, .scale = scale, .size = 8};
            const Inputs inputs(c, 5);
            const Results results = run(c, inputs);
            for (const Tensor* t : {&results.out, &results.lse, &results.dq, &results.dk, &results.dv}) {
                CHECK(std::isfinite(largest_value(*t)));
            }
        }
        // All scores far below -88, where exp(0 - lse) of a masked key would be infinite.
        Case c{.dtype = dtype, .head_dim = 64, .starts = {0, 70, 83}, .scale = 1};
        Inputs inputs(c, 6);
        for (std::int64_t t = 0; t < c.tokens(); ++t) {
            for (std::int64_t d = 0; d < c.head_dim; ++d) {
                inputs.q.set(t, d, 3 + 0.125 * static_cast<double>(t % 5));
                inputs.k.set(t, d, -2 + 0.125 * static_cast<double>((t + d) % 3));
            }
        }
        const Results results = run(c, inputs);
        const Results expected = expected_results(c, inputs);
        const Results plain = plain_results(c, inputs);
        CHECK(largest_error(results.lse, expected.lse) < 400 * 64 * unit_roundoff(DType::f32));
        CHECK(expected.lse.get(0, 0) < -88);
        // Scores of the plain composition are off by their rounding, ours are not.
        CHECK(largest_error(results.out, expected.out) <= 2 * largest_error(plain.out, expected.out) + 1e-4);
        CHECK(largest_error(results.dq, expected.dq) <= 3 * largest_error(plain.dq, expected.dq) + 1e-3);
        CHECK(largest_error(results.dk, expected.dk) <= 3 * largest_error(plain.dk, expected.dk) + 1e-3);
        CHECK(largest_error(results.dv, expected.dv) <= 3 * largest_error(plain.dv, expected.dv) + 1e-4);
    }
}

TEST_CASE("A window of 1 returns a token's own value") {
    for (const DType dtype : kDTypes) {
        const Case c{.dtype = dtype, .head_dim = 32, .starts = {0, 70}, .window = 1};
        const Inputs inputs(c, 8);
        const Results results = run(c, inputs);
        CHECK(largest_error(results.out, inputs.v) == 0);
        // A probability of 1 from the stored log-sum-exp, to its rounding.
        CHECK(largest_error(results.dv, inputs.dout) <= 4 * 2 * unit_roundoff(dtype));
    }
}

TEST_CASE("Aligned attention on the device reads shared memory without bank conflicts") {
    if (!simt::is_emulated()) {
        WARN("left out: only the emulator counts bank conflicts");
        return;
    }
    for (const DType dtype : {DType::bf16, DType::f16}) {
        for (const std::int64_t head_dim : {32, 64, 96, 128, 256}) {
            const Case c{.dtype = dtype, .head_dim = head_dim, .starts = {0, 70}};
            const Inputs inputs(c, 9);
            simt::reset_statistics();
            run(c, inputs);
            CAPTURE(head_dim);
            CHECK(simt::statistics().shared_conflicts == 0);
        }
    }
}

TEST_CASE("Attention on the device takes no tokens, and refuses what it has no kernel for") {
    CHECK(cuda::attention_tiles(Starts{0, 0, 0}, 64).empty());
    CHECK_THROWS_WITH(cuda::attention_tile_rows(DType::bf16, 257), Catch::Contains("257"));
    CHECK_THROWS_WITH(cuda::attention_tile_rows(DType::f64, 64), Catch::Contains("f64"));
    CHECK_THROWS_WITH(cuda::attention_tiles(Starts{0, std::int64_t{1} << 31}, 64), Catch::Contains("2147483648"));
    const Starts none = {0};
    const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 64, .scale = 1, .starts = none};
    const Matrix nothing(nullptr, DType::bf16, 0, 64);
    const Matrix no_lse(nullptr, DType::f32, 0, 1);
    cuda::attention_forward(nullptr, nothing, no_lse, nothing, nothing, nothing, shape, {});
    cuda::attention_backward(nullptr, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, no_lse,
                             shape, {}, {});
    const Matrix one(nullptr, DType::bf16, 1, 64);
    CHECK_THROWS_WITH(cuda::attention_backward(nullptr, one, one, one, one, one, one, one, one, no_lse, shape, {}, {}),
                      Catch::Contains("workspace"));
}

TEST_CASE("Attention on the device agrees with the reference at large lengths", "[.slow]") {
    for (const DType dtype : kDTypes) {
        for (const std::int64_t length : {512, 1024}) {
            require_reference({.dtype = dtype, .head_dim = 64, .starts = {0, length}, .heads = 2});
            require_reference({.dtype = dtype, .head_dim = 128, .starts = {0, length}, .window = 300});
        }
        require_reference({.dtype = dtype, .head_dim = 256, .starts = {0, 100, 512}});
    }
}

TEST_CASE("Attention on the device agrees with the reference on random shapes", "[.slow]") {
    for (unsigned seed = 0; seed < 40; ++seed) {
        std::mt19937 random(seed);
        const auto pick = [&](std::int64_t low, std::int64_t high) {
            return std::uniform_int_distribution<std::int64_t>(low, high)(random);
        };
        Starts starts = {0};
        for (std::int64_t s = pick(1, 4); s > 0 || starts.back() == 0; --s) {
            starts.push_back(starts.back() + pick(0, 3) * pick(0, 60));
        }
        const std::int64_t kv_heads = pick(1, 2);
        CAPTURE(seed);
        require_reference({.dtype = kDTypes[seed % 3],
                           .head_dim = pick(1, 256),
                           .starts = starts,
                           .heads = kv_heads * pick(1, 3),
                           .kv_heads = kv_heads,
                           .window = pick(0, 1) * pick(1, 150),
                           .columns_before = pick(0, 8),
                           .order = order_of(seed)},
                          seed);
    }
}

}  // namespace tessera
