// The words that threads do together: what they give, and what is reported of kernels that use them wrongly.
#include <catch2/catch.hpp>
#include <numeric>

#include "test/simt/reports.h"

using Catch::Matchers::Contains;

namespace tessera::simt {
namespace {

struct Places : OfThreads<64> {
    std::int64_t* out;
    SIMT_DEVICE void operator()() const {
        const std::int64_t block = (block_z() * grid_y() + block_y()) * grid_x() + block_x();
        out[block * kThreads + thread()] = block * 1000 + warp() * 100 + lane();
    }
};

TEST_CASE("threads and blocks know their places") {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const DeviceArray<std::int64_t> out(2 * 3 * 4 * 64);
        launch(nullptr, {.x = 2, .y = 3, .z = 4}, Places{{}, out.data()});
        const std::vector<std::int64_t> values = out.read();
        for (std::int64_t i = 0; i < out.size(); ++i) {
            REQUIRE(values[static_cast<std::size_t>(i)] == i / 64 * 1000 + i % 64 / 32 * 100 + i % 32);
        }
    }
    set_emulation({});
}

struct Exchanges : OfThreads<64> {
    std::int64_t* out;  // [8][64]
    SIMT_DEVICE void operator()() const {
        const std::int64_t value = 1000 * warp() + lane();
        std::int64_t* to = out + thread();
        to[0] = shuffle(value, 5);
        to[64] = shuffle_xor(value, 3);
        to[128] = shuffle_down(value, 4);
        to[192] = shuffle(static_cast<float>(value), lane() + 33) > 0 ? 1 : 0;
        to[256] = any(lane() == 7 && warp() == 1) ? 1 : 0;
        to[320] = all(lane() < 32 - warp()) ? 1 : 0;
        to[384] = ballot(lane() % 2 == 0 && warp() == 0);
        const unsigned half = lane() < 16 ? 0x0000ffffU : 0xffff0000U;
        to[448] = shuffle_xor(value, 1, half) + static_cast<std::int64_t>(ballot(true, half) == half);
    }
};

TEST_CASE("shuffles and votes give what PTX says") {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const DeviceArray<std::int64_t> out(8 * 64);
        launch(nullptr, {}, Exchanges{{}, out.data()});
        const std::vector<std::int64_t> values = out.read();
        for (std::int64_t i = 0; i < 64; ++i) {
            const std::int64_t lane = i % 32;
            const std::int64_t base = i / 32 * 1000;
            const auto at = [&](std::int64_t row) { return values[static_cast<std::size_t>(row * 64 + i)]; };
            CHECK(at(0) == base + 5);
            CHECK(at(1) == base + (lane ^ 3));
            CHECK(at(2) == base + (lane + 4 < 32 ? lane + 4 : lane));
            CHECK(at(3) == (i == 31 ? 0 : 1));
            CHECK(at(4) == i / 32);
            CHECK(at(5) == 1 - i / 32);
            CHECK(at(6) == (i < 32 ? 0x55555555 : 0));
            CHECK(at(7) == base + (lane ^ 1) + 1);
        }
    }
    set_emulation({});
}

struct BlockSum : OfThreads<256> {
    const float* x;
    float* out;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, sums, kThreads / kWarp);
        float sum = x[block_x() * kThreads + thread()];
        for (int bits = kWarp / 2; bits > 0; bits /= 2) {
            sum += shuffle_xor(sum, bits);
        }
        if (lane() == 0) {
            sums[warp()] = sum;
        }
        sync_block();
        if (thread() == 0) {
            for (int i = 1; i < kThreads / kWarp; ++i) {
                sum += sums[i];
            }
            out[block_x()] = sum;
        }
    }
};

TEST_CASE("a sum over a block is right, in any order, and reported of in none") {
    std::vector<float> x(3 * 256);
    std::iota(x.begin(), x.end(), 0.0F);
    const DeviceArray<float> in(x);
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const DeviceArray<float> out(3);
        REQUIRE(report_of(BlockSum{{}, in.data(), out.data()}, {.x = 3}) == "");
        CHECK(out.read() == std::vector<float>{32640, 98176, 163712});
    }
    set_emulation({});
}

/// Warp 0 fills buffers that warps 1 and 2 use: barrier 1 says "full", barrier 2 "empty".
struct Specialised : OfThreads<96> {
    const float* x;
    float* out;
    std::int64_t steps;
    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, buffer, kWarp);
        float sum = 0;
        for (std::int64_t step = 0; step < steps; ++step) {
            if (warp() == 0) {
                buffer[lane()] = x[step * kWarp + lane()];
                sync_named<1>(96);
                sync_named<2>(96);
            } else {
                sync_named<1>(96);
                sum += buffer[(lane() + warp()) % kWarp];
                sync_named<2>(96);
            }
        }
        if (warp() > 0) {
            sync_named<3>(64);
            out[thread() - kWarp] = sum;
        }
    }
};

TEST_CASE("warps with different work meet at named barriers") {
    std::vector<float> x(4 * 32);
    std::iota(x.begin(), x.end(), 0.0F);
    const DeviceArray<float> in(x);
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const DeviceArray<float> out(64);
        REQUIRE(report_of(Specialised{{}, in.data(), out.data(), 4}) == "");
        const std::vector<float> sums = out.read();
        CHECK(sums[0] == 4 * 1 + 192);
        CHECK(sums[63] == 4 * 1 + 192);
        CHECK(sums[10] == 4 * 11 + 192);
    }
    set_emulation({});
}

struct BarrierInBranch : OfThreads<64> {
    SIMT_DEVICE void operator()() const {
        if (warp() == 0) {
            sync_block();
        } else {
            sync_block();
        }
    }
};
struct EarlyReturn : OfThreads<64> {
    SIMT_DEVICE void operator()() const {
        if (thread() == 40) {
            return;
        }
        sync_block();
    }
};
struct NotInMask : OfThreads<32> {
    SIMT_DEVICE void operator()() const { sync_warp(0x7fffffffU); }
};
struct EndedInMask : OfThreads<32> {
    SIMT_DEVICE void operator()() const {
        if (lane() != 3) {
            sync_warp();
        }
    }
};
struct InactiveSource : OfThreads<32> {
    int* out;
    SIMT_DEVICE void operator()() const {
        if (lane() < 16) {
            out[lane()] = shuffle(lane(), 20, 0xffffU);
        }
    }
};
struct DifferentWords : OfThreads<32> {
    int* out;
    SIMT_DEVICE void operator()() const { out[lane()] = lane() < 16 ? shuffle(lane(), 0) : shuffle_xor(lane(), 1); }
};
struct DifferentPlaces : OfThreads<32> {
    int* out;
    SIMT_DEVICE void operator()() const {
        if (lane() < 16) {
            out[lane()] = shuffle(lane(), 0);
        } else {
            out[lane()] = shuffle(lane(), 1);
        }
    }
};
struct DifferentMasks : OfThreads<32> {
    SIMT_DEVICE void operator()() const { sync_warp(lane() == 0 ? kAll : 0x0000ffffU << (lane() < 16 ? 0 : 16)); }
};
struct TooFewAtBarrier : OfThreads<64> {
    SIMT_DEVICE void operator()() const {
        if (warp() == 0) {
            sync_named<4>(64);
        } else {
            sync_named<5>(64);
        }
    }
};
struct DifferentCounts : OfThreads<64> {
    SIMT_DEVICE void operator()() const { sync_named<4>(warp() == 0 ? 64 : 32); }
};
struct PartsOfWarps : OfThreads<64> {
    SIMT_DEVICE void operator()() const {
        if (lane() < 16) {
            sync_named<4>(32);
        }
    }
};
struct WarpAgainstBlock : OfThreads<64> {
    SIMT_DEVICE void operator()() const {
        if (lane() == 0) {
            sync_block();
        } else {
            sync_warp();
        }
    }
};

TEST_CASE("wrong meetings are reported") {
    const DeviceArray<int> out(32);
    expect_report(BarrierInBranch{}, "sync_block in divergent code");
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK_THAT(report_of(EarlyReturn{}),
                   Contains("sync_block, which all threads of the block must reach") && Contains("ended"));
    }
    expect_report(NotInMask{}, "lane 31 is not in its own mask 0x7fffffff of sync_warp");
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK_THAT(report_of(EndedInMask{}), Contains("mask 0xffffffff") && Contains("ended"));
    }
    expect_report(InactiveSource{{}, out.data()}, "shuffle reads from lane 20, which is not in the mask 0x0000ffff");
    expect_report(DifferentWords{{}, out.data()}, "different operations meet");
    expect_report(DifferentPlaces{{}, out.data()}, "different operations meet");
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK_THAT(report_of(DifferentMasks{}), Contains("different operations meet") || Contains("that ended"));
        CHECK_THAT(report_of(DifferentCounts{}), Contains("sync_named<4> with") || Contains("deadlock"));
    }
    expect_report(TooFewAtBarrier{}, "threads 0-31: at sync_named<4>, where 32 of 64 threads are");
    expect_report(PartsOfWarps{}, "sync_named<4> is reached by parts of warps");
    expect_report(WarpAgainstBlock{}, "deadlock: no thread of the block can go on");
    expect_report(WarpAgainstBlock{}, "threads 0, 32: at sync_block, where 2 of 64 threads are");
}

TEST_CASE("a report names kernel, block, thread and place, and the next launch is not concerned") {
    set_emulation({});
    const std::string report = report_of(NotInMask{}, {.x = 3});
    CHECK_THAT(report, Contains("NotInMask, block (0, 0, 0), thread 31:"));
    CHECK_THAT(report, Contains("emulator_test.cpp:"));
    const DeviceArray<std::int64_t> out(64);
    CHECK(report_of(Places{{}, out.data()}) == "");
    CHECK(out.read()[63] == 131);
}

template <int threads>
struct Nothing : OfThreads<threads> {
    SIMT_DEVICE void operator()() const {}
};

TEST_CASE("launches that the device would refuse are refused") {
    set_emulation({});
    CHECK(report_of(Nothing<1024>{}) == "");
    CHECK_THAT(report_of(Nothing<1056>{}), Contains("blocks of 1056 threads"));
    CHECK_THAT(report_of(Nothing<48>{}), Contains("blocks of 48 threads"));
    CHECK_THAT(report_of(Nothing<32>{}, {.x = 0}), Contains("a grid of 0 x 1 x 1"));
    CHECK_THAT(report_of(Nothing<32>{}, {.x = std::int64_t{1} << 31}), Contains("a grid of 2147483648 x 1 x 1"));
    CHECK_THAT(report_of(Nothing<32>{}, {.y = 65536}), Contains("a grid of 1 x 65536 x 1"));
    CHECK_THAT(report_of(Nothing<32>{}, {.z = 65536}), Contains("a grid of 1 x 1 x 65536"));
    CHECK(report_of(Nothing<32>{}, {.z = 65535}) == "");
    for (const auto& [capability, kibibytes] : {std::pair{80, 163}, {89, 99}, {90, 227}}) {
        set_emulation({.capability = capability});
        CHECK(report_of(Nothing<32>{}, {}, kibibytes << 10) == "");
        CHECK_THAT(report_of(Nothing<32>{}, {}, (kibibytes << 10) + 1), Contains("bytes of dynamic shared memory"));
        CHECK(device_info().largest_shared == kibibytes << 10);
    }
    set_emulation({});
    CHECK_THROWS_AS(set_emulation({.capability = 70}), EmulationError);
}

struct Throws : OfThreads<32> {
    SIMT_DEVICE void operator()() const {
        if (thread() == 9) {
            throw std::runtime_error("of its own");
        }
    }
};

TEST_CASE("an exception ends the launch") {
    expect_report(Throws{}, "thread 9: throws an exception: of its own");
}

struct Mathematics : OfThreads<32> {
    float* out;
    SIMT_DEVICE void operator()() const {
        if (thread() == 0) {
            out[0] = exp(1.0F);
            out[1] = exp2(3.0F);
            out[2] = exp2_approx(-140.0F);
            out[3] = log(2.0F);
            out[4] = rsqrt(4.0F);
            out[5] = sqrt(9.0F);
            out[6] = max(2.0F, min(3.0F, 5.0F));
            out[7] = static_cast<float>(max(2, 3));
            out[8] = to_float(from_float<bfloat16>(1.00390625F));  // a tie: to even
            out[9] = to_float(from_float<float16>(1e5F));
            const std::uint32_t pair = pack2<bfloat16>(1.0F, -2.0F);
            out[10] = pair == 0xc0003f80U ? 1.0F : 0.0F;
        }
    }
};

TEST_CASE("numbers are what the device makes of them") {
    const DeviceArray<float> out(11);
    REQUIRE(report_of(Mathematics{{}, out.data()}) == "");
    const std::vector<float> values = out.read();
    const std::vector<float> expected = {2.7182817F, 8, 0, 0.6931472F, 0.5F, 3, 3, 3, 1, INFINITY, 1};
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(values[i] == Approx(expected[i]));
    }
}

}  // namespace
}  // namespace tessera::simt
