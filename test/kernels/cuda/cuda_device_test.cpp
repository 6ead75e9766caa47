// The host code of the CUDA backend: what must wait for what, on the emulated device in every order that a device may
// choose.
#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "kernels/cuda/index_cache.h"
#include "test/simt/emulator.h"

using namespace tessera;

namespace {

constexpr std::int64_t kRows = 7;
constexpr std::int64_t kColumns = 5;

void set_random_order(std::uint64_t seed) {
    simt::set_emulation({.order = simt::Order::random, .seed = seed});
}

/// A device, its operations with a workspace, and exchanges with nobody.
struct Fixture {
    explicit Fixture(const OpsOptions& options = {.storage = DType::f32})
        : device(cuda::open_cuda_device(0)),
          ops(device->make_ops(options)),
          workspace(device->allocate(ops->workspace_bytes(limits()))),
          exchange(device->connect({0, 1, {}, &nobody})) {
        ops->bind_workspace(workspace.span(), limits());
    }
    static OpsLimits limits() {
        return {.tokens = 64,
                .columns = 64,
                .weight_elements = 4096,
                .logits_rows = 8,
                .vocabulary = 64,
                .heads = 2,
                .kv_heads = 1,
                .head_dim = 16,
                .longest_segment = 64};
    }

    [[nodiscard]] Matrix matrix(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
        const Memory& memory = memories.emplace_back(device->allocate(rows * cols * size_of(DType::f32)));
        const Matrix result(memory.span().data(), DType::f32, rows, cols);
        ops->write(result, std::as_bytes(std::span(values)));
        return result;
    }
    [[nodiscard]] std::vector<float> read(const Matrix& from) {
        std::vector<float> values(static_cast<std::size_t>(from.elements()));
        ops->read(std::as_writable_bytes(std::span(values)), from);
        return values;
    }

    struct Nobody : BulkExchange {
        void all_to_all(const std::byte*, std::byte*, std::int64_t) const override {}
        void all_gather(const std::byte*, std::byte*, std::int64_t, std::int64_t) const override {}
        void all_gather_in_place(std::byte*, std::int64_t, std::int64_t) const override {}
    };

    Nobody nobody;
    std::unique_ptr<Device> device;
    std::unique_ptr<Ops> ops;
    Memory workspace;
    std::unique_ptr<DeviceExchange> exchange;
    std::vector<Memory> memories;
};

std::vector<float> numbers(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), 1.0F);
    return values;
}

}  // namespace

TEST_CASE("Memory of the device is zeroed, and what is written to it is read from it") {
    Fixture f;
    const Memory memory = f.device->allocate(64);
    CHECK(f.read(Matrix(memory.span().data(), DType::f32, 1, 16)) == std::vector<float>(16, 0.0F));
    const std::vector<float> values = numbers(kRows * kColumns);
    CHECK(f.read(f.matrix(values, kRows, kColumns)) == values);
    CHECK(f.device->kind() == "cuda");
    CHECK(f.device->free_bytes().value() > 0);
}

TEST_CASE("An array of indices may change as soon as an operation was asked for, however many follow") {
    const auto seed = GENERATE(range(1, 9));
    set_random_order(static_cast<std::uint64_t>(seed));
    Fixture f;
    constexpr std::int64_t kFrom = 61;  // rows; 31 of them are the square of something
    const std::vector<float> values = numbers(kFrom * kColumns);
    const Matrix from = f.matrix(values, kFrom, kColumns);
    // More arrays than the cache keeps, some of them again and again, all in one vector of the host.
    constexpr std::int64_t kCalls = 3 * cuda::IndexCache::kEntries;
    const Matrix to = f.matrix(std::vector<float>(static_cast<std::size_t>(kCalls * kColumns)), kCalls, kColumns);
    std::vector<std::int32_t> row(1);
    for (std::int64_t call = 0; call < kCalls; ++call) {
        row[0] = static_cast<std::int32_t>(call * call % kFrom);
        f.ops->gather_rows(to.row_range(call, 1), from, row);
    }
    const std::vector<float> gathered = f.read(to);
    for (std::int64_t call = 0; call < kCalls; ++call) {
        for (std::int64_t c = 0; c < kColumns; ++c) {
            const auto expected = values[static_cast<std::size_t>(call * call % kFrom * kColumns + c)];
            REQUIRE(gathered[static_cast<std::size_t>(call * kColumns + c)] == expected);
        }
    }
    simt::set_emulation({});
}

TEST_CASE("Exchanges begin behind what was asked for before, and operations wait for those that they must") {
    const auto seed = GENERATE(range(1, 9));
    set_random_order(static_cast<std::uint64_t>(seed));
    Fixture f;
    const std::vector<float> one(kColumns, 1.0F);
    const Matrix a = f.matrix(std::vector<float>(kColumns, 0.0F), 1, kColumns);
    const Matrix b = f.matrix(std::vector<float>(kColumns, 0.0F), 1, kColumns);
    const Matrix ones = f.matrix(one, 1, kColumns);
    // More than the exchange remembers one by one.
    constexpr int kRounds = 100;
    std::vector<DeviceExchange::Point> points;
    DeviceExchange::Times times;
    const auto add = [&](const DeviceExchange::Times& more) {
        times.exchanges.insert(times.exchanges.end(), more.exchanges.begin(), more.exchanges.end());
        times.waits.insert(times.waits.end(), more.waits.begin(), more.waits.end());
    };
    for (int round = 0; round < kRounds; ++round) {
        f.ops->add(a, a, ones);  // computed
        f.exchange->begin();
        f.ops->add(b, b, a);  // exchanged: must see the sum above
        points.push_back(f.exchange->end());
        if (round % 2 == 0) {
            CHECK(f.exchange->order_after(points.back()));
        } else {
            CHECK_FALSE(
                f.exchange->order_after(points[static_cast<std::size_t>(round / 3)]));  // the one before is waited for
            CHECK(f.exchange->order_after(points.back()));                              // a is written next
        }
        if (round % 7 == 0) {
            add(f.exchange->take_times());
        }
    }
    f.exchange->finish();
    add(f.exchange->take_times());
    CHECK(times.exchanges.size() == kRounds);
    CHECK(times.waits.size() == kRounds);
    CHECK(std::ranges::min(times.exchanges) >= 0);
    CHECK(std::ranges::min(times.waits) >= 0);
    // b = 1 + 2 + ... + kRounds
    CHECK(f.read(b) == std::vector<float>(kColumns, kRounds * (kRounds + 1) / 2.0F));
    simt::set_emulation({});
}

TEST_CASE("The norm of several vectors is that of their elements") {
    Fixture f;
    const std::vector<float> values = numbers(60);
    const Matrix x = f.matrix(values, 1, 60);
    const std::vector<ConstMatrix> parts = {x.col_range(0, 13), x.col_range(13, 46), x.col_range(59, 1)};
    // Whole numbers: every sum is exact.
    CHECK(f.ops->squared_norm(parts) == 60.0 * 61.0 * 121.0 / 6.0);
    CHECK(f.ops->squared_norm(std::span<const ConstMatrix>()) == 0);
}

TEST_CASE("Products of f32 round their inputs to TF32 where that is asked for, and only there") {
    const auto values = [](std::int64_t count, float step) {
        std::vector<float> result = numbers(count);
        std::ranges::transform(result, result.begin(), [&](float x) { return 1 + step * x; });
        return result;
    };
    const std::vector<float> x = values(kRows * kColumns, 1e-3F);
    const std::vector<float> w = values(kColumns, -1e-3F);
    for (const bool tf32 : {false, true}) {
        Fixture f({.storage = DType::f32, .tf32 = tf32});
        const Matrix y = f.matrix(std::vector<float>(kRows), kRows, 1);
        f.ops->linear_forward(y, f.matrix(x, kRows, kColumns), f.matrix(w, 1, kColumns), {});
        const std::vector<float> got = f.read(y);
        double largest = 0;
        for (std::size_t row = 0; row < kRows; ++row) {
            double exact = 0;
            for (std::size_t c = 0; c < kColumns; ++c) {
                exact += static_cast<double>(x[row * kColumns + c]) * static_cast<double>(w[c]);
            }
            largest = std::max(largest, std::abs(got[row] - exact) / exact);
        }
        // All terms are positive. Two inputs lose 2^-11 each where 10 bits are kept by rounding, 2^-10 by cutting off.
        CHECK(largest < (tf32 ? 2.1 * 0x1p-10 : 8 * 0x1p-24));
        if (simt::is_emulated()) {  // a library need not make use of what it may do
            CHECK((largest > 0x1p-15) == tf32);
        }
    }
}

TEST_CASE("What the backend does not have is refused") {
    const std::unique_ptr<Device> device = cuda::open_cuda_device(0);
    CHECK_THROWS_WITH(device->make_ops({.fused = false}), Catch::Contains("model.fused_kernels"));
    CHECK_THROWS_WITH(device->make_ops({.attention = AttentionKind::eager}),
                      Catch::Contains("model.attn_implementation = \"eager\""));
    Fixture f;
    OpsLimits limits = Fixture::limits();
    limits.head_dim = 257;
    CHECK_THROWS_AS(f.ops->workspace_bytes(limits), Error);
}
