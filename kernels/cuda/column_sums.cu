#include "kernels/cuda/column_sums.h"

#include <algorithm>

#include "core/base/checked.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/workspace.h"

namespace tessera::cuda {

namespace {

/// Rows that a block sums; where there are more, the sums of the blocks are summed in a second pass.
constexpr std::int64_t kRangeRows = 256;
/// Up to so many rows one pass is quicker.
constexpr std::int64_t kOnePassRows = 2 * kRangeRows;

/// A block sums one tile of columns over one range of rows: lane l of a warp a few neighbouring columns, warp w the
/// rows w, w + kWarps, ..., and then the first warp what the warps have, in their order.
template <typename S>
struct ColumnSums {
    static constexpr int kThreads = 512;
    static constexpr int kMinBlocks = 2;
    static constexpr int kWarps = kThreads / simt::kWarp;
    static constexpr int kGroup = sizeof(S) == 2 ? 4 : 1;  // columns of a lane
    static constexpr int kTile = kGroup * simt::kWarp;
    static constexpr int kAhead = 4;  // rows that are read before any is added
    Rows<const S> x;
    std::int64_t rows;
    std::int64_t cols;
    std::int64_t tiles;
    std::int64_t range_rows;
    float* sums;  // [1, cols] to add to, or [ranges, cols] to write
    std::int64_t sums_stride;
    bool adds;
    bool vectors;

    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, shared, kWarps* kTile);
        const std::int64_t range = simt::block_x() / tiles;
        const std::int64_t col = (simt::block_x() - range * tiles) * kTile + simt::lane() * kGroup;
        const std::int64_t end = simt::min(rows, (range + 1) * range_rows);
        float sum[kGroup] = {};
        for (std::int64_t row = range * range_rows + simt::warp(); row < end; row += kAhead * kWarps) {
            S values[kAhead][kGroup];
            for (int k = 0; k < kAhead; ++k) {
                const std::int64_t next = row + k * kWarps;
                load_some(values[k], x[next] + col, next < end ? cols - col : 0, vectors, S{});
            }
            for (int k = 0; k < kAhead; ++k) {
                for (int i = 0; i < kGroup; ++i) {
                    sum[i] += simt::to_float(values[k][i]);
                }
            }
        }
        for (int i = 0; i < kGroup; ++i) {
            shared[simt::warp() * kTile + i * simt::kWarp + simt::lane()] = sum[i];
        }
        simt::sync_block();
        if (simt::warp() != 0) {
            return;
        }
        for (int i = 0; i < kGroup && col + i < cols; ++i) {
            float total = 0;
            for (int warp = 0; warp < kWarps; ++warp) {
                total += shared[warp * kTile + i * simt::kWarp + simt::lane()];
            }
            float& target = sums[range * sums_stride + col + i];
            target = adds ? target + total : total;
        }
    }
};

void sum_ranges(simt::Stream stream, Matrix sums, ConstMatrix x, std::int64_t range_rows, bool adds) {
    with_storage(x.dtype, [&](auto type) {
        using Kernel = ColumnSums<decltype(type)>;
        const std::int64_t tiles = ceil_div(x.cols, Kernel::kTile);
        const Kernel kernel{
            rows_of<decltype(type)>(x), x.rows, x.cols, tiles, range_rows, sums.as<float>(), sums.stride, adds,
            aligned<Kernel::kGroup>(x)};
        simt::launch(stream, {.x = tiles * ceil_div(x.rows, range_rows)}, kernel);
    });
}

}  // namespace

std::int64_t column_sums_workspace_bytes(std::int64_t rows, std::int64_t cols) {
    return rows <= kOnePassRows ? 0
                                : checked_mul(ceil_div(rows, kRangeRows), cols * size_of(DType::f32), "column sums");
}

void add_column_sums(simt::Stream stream, Matrix sums, ConstMatrix x, std::span<std::byte> workspace) {
    if (x.empty()) {
        return;
    }
    if (x.rows <= kOnePassRows) {
        return sum_ranges(stream, sums, x, x.rows, true);
    }
    const std::int64_t ranges = ceil_div(x.rows, kRangeRows);
    const Matrix partials(reinterpret_cast<std::byte*>(workspace_as<float>(workspace, ranges * x.cols)), DType::f32,
                          ranges, x.cols);
    sum_ranges(stream, partials, x, kRangeRows, false);
    sum_ranges(stream, sums, partials, ranges, true);
}

}  // namespace tessera::cuda
