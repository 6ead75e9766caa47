// Kernels in which every element, or every group of neighbours in a row, is computed on its own.
#pragma once

#include <cstdint>

#include "core/base/checked.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

/// Each thread visits one group of `width` neighbours of a row: Body::kGroup of them, or 1 where vectors are not
/// possible. Consecutive threads take consecutive groups, so that either way a warp reads whole lines.
template <typename Body>
struct ForElements {
    static constexpr int kThreads = 256;
    static constexpr int kMinBlocks = 4;
    Body body;
    std::int64_t groups;  // in all rows
    std::int64_t groups_per_row;
    std::int64_t cols;
    int width;

    SIMT_DEVICE void operator()() const {
        const std::int64_t group = simt::block_x() * kThreads + simt::thread();
        if (group >= groups) {
            return;
        }
        const std::int64_t row = group / groups_per_row;
        const std::int64_t col = (group - row * groups_per_row) * width;
        if (width == Body::kGroup && col + Body::kGroup <= cols) {
            body.template visit<Body::kGroup>(row, col);
        } else {
            for (std::int64_t c = col; c < simt::min(col + width, cols); ++c) {
                body.template visit<1>(row, c);
            }
        }
    }
};

/// Calls body.visit<N>(row, col) on the device so that the groups of N columns cover [rows, cols] once. N is
/// Body::kGroup, with col a multiple of it, or 1; always 1 without `vectors`. Different visits may run at once.
template <typename Body>
void for_elements(simt::Stream stream, std::int64_t rows, std::int64_t cols, bool vectors, const Body& body) {
    if (rows == 0 || cols == 0) {
        return;
    }
    const int width = vectors ? Body::kGroup : 1;
    const std::int64_t groups_per_row = ceil_div(cols, width);
    const std::int64_t groups = rows * groups_per_row;
    const ForElements<Body> kernel{body, groups, groups_per_row, cols, width};
    simt::launch(stream, {.x = ceil_div(groups, ForElements<Body>::kThreads)}, kernel);
}

}  // namespace tessera::cuda
