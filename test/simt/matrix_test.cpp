// load_matrix_x4 and mma_16x8x16 against products and copies that are written out from the tables of PTX.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "test/simt/matrix.h"
#include "test/simt/reports.h"

using Catch::Matchers::Contains;

namespace tessera::simt {
namespace {

template <typename H>
struct Product {
    static constexpr int kThreads = 32;
    static constexpr int kMinBlocks = 0;
    const std::uint32_t* a;  // [32][4]
    const std::uint32_t* b;  // [32][2]
    float* d;                // [32][4]
    SIMT_DEVICE void operator()() const {
        std::uint32_t a_fragment[4];
        std::uint32_t b_fragment[2];
        float sums[4];
        for (int i = 0; i < 4; ++i) {
            a_fragment[i] = a[lane() * 4 + i];
            sums[i] = d[lane() * 4 + i];
        }
        for (int i = 0; i < 2; ++i) {
            b_fragment[i] = b[lane() * 2 + i];
        }
        mma_16x8x16<H>(sums, a_fragment, b_fragment);
        for (int i = 0; i < 4; ++i) {
            d[lane() * 4 + i] = sums[i];
        }
    }
};

/// Element `i` of a lane's fragments, as the PTX ISA has them ("Matrix Fragments for mma.m16n8k16 with floating point
/// type"): eight of a, four of b and of d.
struct RowColumn {
    int row;
    int column;
};
RowColumn a_place(int lane, int i) {
    const int group = lane >> 2;
    const int row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
    const int column = i < 4 ? (lane % 4) * 2 + (i & 1) : (lane % 4) * 2 + (i & 1) + 8;
    return {row, column};
}
RowColumn b_place(int lane, int i) {
    const int row = i < 2 ? (lane % 4) * 2 + (i & 1) : (lane % 4) * 2 + (i & 1) + 8;
    return {row, lane >> 2};
}
RowColumn d_place(int lane, int i) {
    return {i < 2 ? lane >> 2 : (lane >> 2) + 8, (lane % 4) * 2 + (i & 1)};
}

struct Matrices {
    float a[16][16];
    float b[16][8];
    float d[16][8];
};

/// Small whole numbers, of which every sum is exact.
Matrices random_matrices() {
    std::mt19937 random(1);
    std::uniform_int_distribution<int> number(-8, 8);
    Matrices m;
    for (auto& row : m.a) {
        std::generate(std::begin(row), std::end(row), [&] { return static_cast<float>(number(random)); });
    }
    for (auto& row : m.b) {
        std::generate(std::begin(row), std::end(row), [&] { return static_cast<float>(number(random)); });
    }
    for (auto& row : m.d) {
        std::generate(std::begin(row), std::end(row), [&] { return static_cast<float>(number(random)); });
    }
    return m;
}

template <typename H>
Matrices multiply_emulated(const Matrices& m) {
    std::vector<std::uint32_t> a(128);
    std::vector<std::uint32_t> b(64);
    std::vector<float> d(128);
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 8; ++i) {
            const RowColumn at = a_place(lane, i);
            a[static_cast<std::size_t>(lane * 4 + i / 2)] |= std::uint32_t{H(m.a[at.row][at.column]).bits}
                                                             << 16 * (i % 2);
        }
        for (int i = 0; i < 4; ++i) {
            const RowColumn b_at = b_place(lane, i);
            b[static_cast<std::size_t>(lane * 2 + i / 2)] |= std::uint32_t{H(m.b[b_at.row][b_at.column]).bits}
                                                             << 16 * (i % 2);
            const RowColumn d_at = d_place(lane, i);
            d[static_cast<std::size_t>(lane * 4 + i)] = m.d[d_at.row][d_at.column];
        }
    }
    const DeviceArray<std::uint32_t> device_a(a);
    const DeviceArray<std::uint32_t> device_b(b);
    const DeviceArray<float> device_d(d);
    REQUIRE(report_of(Product<H>{device_a.data(), device_b.data(), device_d.data()}) == "");
    d = device_d.read();
    Matrices result = m;
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const RowColumn at = d_place(lane, i);
            result.d[at.row][at.column] = d[static_cast<std::size_t>(lane * 4 + i)];
        }
    }
    return result;
}

TEMPLATE_TEST_CASE("mma_16x8x16 is a product", "", bfloat16, float16) {
    const Matrices m = random_matrices();
    std::vector<Emulation> emulations;
    for (Emulation emulation : all_orders()) {
        emulations.push_back(emulation);
        emulation.truncate_mma = true;
        emulations.push_back(emulation);
        emulation.capability = 90;
        emulations.push_back(emulation);
    }
    for (const Emulation& emulation : emulations) {
        set_emulation(emulation);
        const Matrices result = multiply_emulated<TestType>(m);
        for (int row = 0; row < 16; ++row) {
            for (int column = 0; column < 8; ++column) {
                float sum = m.d[row][column];
                for (int k = 0; k < 16; ++k) {
                    sum += m.a[row][k] * m.b[k][column];
                }
                REQUIRE(result.d[row][column] == sum);
            }
        }
    }
    set_emulation({});
}

TEST_CASE("truncated sums drop what hardware drops") {
    using emulated::truncated_sum;
    const std::array<float, 16> zeros{};
    std::array<float, 16> a{};
    std::array<float, 16> b;
    b.fill(1.0F);
    CHECK(truncated_sum(3.0F, zeros, b, 80) == 3.0F);
    // 2^-24 is the last bit that Ampere keeps beside 1, 2^-25 that of Hopper; the result is cut to 2^-23 then.
    a[0] = 0x1p-24F;
    a[1] = 0x1p-24F;
    CHECK(truncated_sum(1.0F, a, b, 80) == 1.0F + 0x1p-23F);
    a[0] = a[1] = a[2] = a[3] = 0x1p-25F;
    CHECK(truncated_sum(1.0F, a, b, 80) == 1.0F);
    CHECK(truncated_sum(1.0F, a, b, 90) == 1.0F + 0x1p-23F);
    // Rounds toward zero, not to nearest.
    a = zeros;
    a[0] = 1.75F * 0x1p-23F;
    CHECK(truncated_sum(1.0F, a, b, 80) == 1.0F + 0x1p-23F);
    CHECK(truncated_sum(-1.0F, a, b, 80) == -1.0F + 0x1p-23F + 0x1p-24F);
    // Ampere adds 8 products at a time: the second half meets a sum that is small again.
    a = zeros;
    a[0] = 1;
    a[1] = -1;
    a[8] = 0x1p-40F;
    CHECK(truncated_sum(0.0F, a, b, 80) == 0x1p-40F);
    CHECK(truncated_sum(0.0F, a, b, 90) == 0.0F);
    a[0] = INFINITY;
    CHECK(truncated_sum(0.0F, a, b, 80) == INFINITY);
    a[1] = -INFINITY;
    const float nan = truncated_sum(0.0F, a, b, 80);
    CHECK(std::bit_cast<std::uint32_t>(nan) == 0x7fffffffU);
}

/// Copies a 32x8 matrix of 16-bit numbers to shared memory and loads it; `stride`: bytes from row to row.
struct LoadMatrix {
    static constexpr int kThreads = 32;
    static constexpr int kMinBlocks = 0;
    std::uint32_t* out;  // [2][32][4]
    int stride;
    int shift;  // bytes by which addresses are off
    SIMT_DEVICE void operator()() const {
        std::byte* row = dynamic_shared() + lane() * stride;
        for (int i = 0; i < 8; ++i) {
            reinterpret_cast<std::uint16_t*>(row)[i] = static_cast<std::uint16_t>(lane() * 8 + i);
        }
        sync_block();
        std::uint32_t r[4];
        load_matrix_x4(r, row + shift);
        for (int i = 0; i < 4; ++i) {
            out[lane() * 4 + i] = r[i];
        }
        load_matrix_x4_transposed(r, row + shift);
        for (int i = 0; i < 4; ++i) {
            out[128 + lane() * 4 + i] = r[i];
        }
    }
};

TEST_CASE("load_matrix_x4 gives each lane its elements") {
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        const DeviceArray<std::uint32_t> out(256);
        REQUIRE(report_of(LoadMatrix{out.data(), 16, 0}, {}, 32 * 16) == "");
        const std::vector<std::uint32_t> values = out.read();
        const auto element = [](int matrix, int row, int column) {
            return static_cast<std::uint32_t>(matrix * 64 + row * 8 + column);
        };
        for (int lane = 0; lane < 32; ++lane) {
            for (int matrix = 0; matrix < 4; ++matrix) {
                const int row = lane / 4;
                const int column = lane % 4 * 2;
                const auto at = static_cast<std::size_t>(lane * 4 + matrix);
                REQUIRE(values[at] == (element(matrix, row, column) | element(matrix, row, column + 1) << 16));
                REQUIRE(values[128 + at] == (element(matrix, column, row) | element(matrix, column + 1, row) << 16));
            }
        }
    }
    set_emulation({});
}

TEST_CASE("bank conflicts of load_matrix_x4 are counted") {
    const DeviceArray<std::uint32_t> out(256);
    const auto conflicts = [&](int stride) {
        reset_statistics();
        REQUIRE(report_of(LoadMatrix{out.data(), stride, 0}, {}, 32 * stride) == "");
        return statistics().shared_conflicts;
    };
    CHECK(conflicts(16) == 0);
    CHECK(conflicts(128) == 2 * 4 * 7);  // all rows in the same banks, two loads of four matrices
    CHECK(conflicts(64) == 2 * 4 * 3);   // four of eight
    CHECK(conflicts(128 + 16) == 0);     // padded
    reset_statistics();
}

TEST_CASE("load_matrix_x4 from where it may not") {
    const DeviceArray<std::uint32_t> out(256);
    for (const Emulation& emulation : all_orders()) {
        set_emulation(emulation);
        CHECK_THAT(report_of(LoadMatrix{out.data(), 32, 2}, {}, 32 * 32), Contains("misaligned"));
        CHECK_THAT(report_of(LoadMatrix{out.data(), 16, 16}, {}, 32 * 16),
                   Contains("thread 31: read of 16 bytes at 0 bytes past the end of the 512 bytes of shared memory"));
    }
    set_emulation({});
}

}  // namespace
}  // namespace tessera::simt
