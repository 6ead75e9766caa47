#include "test/simt/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "test/simt/block.h"
#include "test/simt/memory_checks.h"
#include "test/simt/settings.h"

namespace tessera::simt::emulated {

namespace {

constexpr int kRows = 16;
constexpr int kColumns = 8;
constexpr int kDepth = 16;
using Row = float __attribute__((vector_size(kColumns * sizeof(float))));

template <typename H>
float half_of(std::uint32_t word, int which) {
    H half;
    half.bits = static_cast<std::uint16_t>(word >> (16 * which));
    return static_cast<float>(half);
}

template <typename H>
void multiply(Block& block, int warp) {
    // Fragment layouts: with g = lane / 4 and t = lane % 4,
    //   a: r[0] = (g, 2t..), r[1] = (g + 8, 2t..), r[2] = (g, 2t + 8..), r[3] = (g + 8, 2t + 8..), two columns each;
    //   b: r[0] = (2t.., g), r[1] = (2t + 8.., g), two rows each;
    //   d: [0], [1] = (g, 2t..), [2], [3] = (g + 8, 2t..).
    float a[kRows][kDepth];
    Row b[kDepth];
    Row d[kRows];
    for (int lane = 0; lane < kWarp; ++lane) {
        const auto& operands = *static_cast<const MmaOperands*>(block.thread(warp, lane).operands);
        const int g = lane / 4;
        const int t = lane % 4;
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) {
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = half_of<H>(operands.a[i], half);
            }
            for (int i = 0; i < 2; ++i) {
                b[2 * t + i * 8 + half][g] = half_of<H>(operands.b[i], half);
                d[g + i * 8][2 * t + half] = operands.d[2 * i + half];
            }
        }
    }
    const Emulation& emulation = block.launch().emulation;
    if (emulation.truncate_mma) {
        for (auto& row : d) {
            std::array<float, kDepth> a_row;
            std::copy_n(a[&row - d], kDepth, a_row.begin());
            for (int column = 0; column < kColumns; ++column) {
                std::array<float, kDepth> b_column;
                for (int k = 0; k < kDepth; ++k) {
                    b_column[static_cast<std::size_t>(k)] = b[k][column];
                }
                row[column] = truncated_sum(row[column], a_row, b_column, emulation.capability);
            }
        }
    } else {
        for (int row = 0; row < kRows; ++row) {
            Row sum = d[row];
            for (int k = 0; k < kDepth; ++k) {
                sum += a[row][k] * b[k];  // products of halves are exact in fp32
            }
            d[row] = sum;
        }
    }
    for (int lane = 0; lane < kWarp; ++lane) {
        const auto& operands = *static_cast<const MmaOperands*>(block.thread(warp, lane).operands);
        for (int i = 0; i < 4; ++i) {
            operands.d[i] = d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
        }
    }
    ++counted_statistics().matrix_products;
}

/// Exponent of a number that is not zero as its bits have it: those of denormals lie at the smallest.
int stored_exponent(float x, int smallest) {
    return std::max(std::ilogb(x), smallest);
}

float add_products(float d, const float* a, const float* b, int count, int fraction_bits) {
    double exact = d;  // only to see infinities and NaNs
    constexpr int kNone = std::numeric_limits<int>::min();
    constexpr int kSmallest = -126;
    int largest = d != 0 ? stored_exponent(d, kSmallest) : kNone;
    for (int k = 0; k < count; ++k) {
        exact += static_cast<double>(a[k]) * static_cast<double>(b[k]);
        if (a[k] != 0 && b[k] != 0 && std::isfinite(a[k]) && std::isfinite(b[k])) {
            largest = std::max(largest, stored_exponent(a[k], kSmallest) + stored_exponent(b[k], kSmallest));
        }
    }
    if (std::isnan(exact)) {
        return std::bit_cast<float>(0x7fffffffU);
    }
    if (std::isinf(exact) || largest == kNone) {
        return static_cast<float>(exact);
    }
    const int scale = fraction_bits - largest;
    auto sum = static_cast<std::int64_t>(std::ldexp(static_cast<double>(d), scale));
    for (int k = 0; k < count; ++k) {
        sum += static_cast<std::int64_t>(std::ldexp(static_cast<double>(a[k]) * static_cast<double>(b[k]), scale));
    }
    const double result = std::ldexp(static_cast<double>(sum), -scale);  // at most 30 bits: exact
    auto rounded = static_cast<float>(result);
    if (std::fabs(static_cast<double>(rounded)) > std::fabs(result)) {
        rounded = std::nextafter(rounded, 0.0F);
    }
    return rounded;
}

/// Further passes that the rows of one 8x8 matrix cost: two different rows in the same 16 of the 128 bytes that the
/// banks give at a time.
int count_conflicts(const std::array<const std::byte*, 8>& rows) {
    int most = 0;
    for (std::uintptr_t chunk = 0; chunk < 8; ++chunk) {
        std::array<const std::byte*, 8> there;
        auto* end = there.begin();
        for (const std::byte* row : rows) {
            if (reinterpret_cast<std::uintptr_t>(row) / 16 % 8 == chunk && std::find(there.begin(), end, row) == end) {
                *end++ = row;
            }
        }
        most = std::max(most, static_cast<int>(end - there.begin()));
    }
    return most - 1;
}

}  // namespace

float truncated_sum(float d, const std::array<float, 16>& a, const std::array<float, 16>& b, int capability) {
    const bool hopper = capability >= 90;
    const int step = hopper ? 16 : 8;
    for (int k = 0; k < kDepth; k += step) {
        d = add_products(d, a.data() + k, b.data() + k, step, hopper ? 25 : 24);
    }
    return d;
}

void do_mma(Block& block, int warp, Word word) {
    if (word == Word::mma_bfloat16) {
        multiply<bfloat16>(block, warp);
    } else {
        multiply<float16>(block, warp);
    }
}

void do_matrix_load(Block& block, int warp, Word word) {
    for (int matrix = 0; matrix < 4; ++matrix) {
        std::array<const std::byte*, 8> rows;
        std::uint16_t elements[8][8];
        for (int row = 0; row < 8; ++row) {
            Thread& thread = block.thread(warp, 8 * matrix + row);
            const void* address = static_cast<const MatrixLoadOperands*>(thread.operands)->row;
            const Site site(thread.place);
            check_alignment(thread, address, 16, site);
            check_shared_access(thread, address, 16, Access::read, site);
            rows[static_cast<std::size_t>(row)] = static_cast<const std::byte*>(address);
            std::memcpy(elements[row], address, 16);
        }
        counted_statistics().shared_conflicts += count_conflicts(rows);
        for (int lane = 0; lane < kWarp; ++lane) {
            const std::size_t g = static_cast<std::size_t>(lane) / 4;
            const std::size_t t = static_cast<std::size_t>(lane) % 4;
            const bool transposed = word == Word::load_matrix_x4_transposed;
            const std::uint32_t low = transposed ? elements[2 * t][g] : elements[g][2 * t];
            const std::uint32_t high = transposed ? elements[2 * t + 1][g] : elements[g][2 * t + 1];
            static_cast<const MatrixLoadOperands*>(block.thread(warp, lane).operands)->r[matrix] = low | high << 16;
        }
    }
}

}  // namespace tessera::simt::emulated
