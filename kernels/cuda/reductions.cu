#include "kernels/cuda/reductions.h"

#include <algorithm>

#include "core/base/checked.h"
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/for_elements.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/workspace.h"

namespace tessera::cuda {

namespace {

constexpr int kThreads = 256;
/// A first pass of so many blocks at most, a number that no device changes, and a second pass of one block.
constexpr std::int64_t kMostBlocks = 1024;

template <typename P>
struct SumRows {
    static constexpr int kGroup = 8;
    float* y;  // may be the first row
    Rows<const P> pieces;
    std::int64_t count;
    bool add;

    template <int N>
    SIMT_DEVICE void visit(std::int64_t /*row*/, std::int64_t col) const {
        float sum[N];
        float values[N];
        load_floats(sum, pieces[0] + col);
        if (add) {
            load_floats(values, y + col);
            for (int i = 0; i < N; ++i) {
                sum[i] = values[i] + sum[i];
            }
        }
        for (std::int64_t row = 1; row < count; ++row) {
            load_floats(values, pieces[row] + col);
            for (int i = 0; i < N; ++i) {
                sum[i] += values[i];
            }
        }
        store_floats(y + col, sum);
    }
};

/// Neighbours are taken kGroup at a time whether or not they can be accessed as vectors: the order is always the same.
struct SumSquares {
    static constexpr int kThreads = cuda::kThreads;
    static constexpr int kMinBlocks = 0;
    static constexpr int kGroup = 4;
    static constexpr int kAhead = 2;  // groups that are read before any is looked at
    const float* x;
    std::int64_t count;
    double* partials;
    bool vectors;

    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(double, shared, kThreads / simt::kWarp);
        double sums[kGroup] = {};
        const std::int64_t step = simt::grid_x() * kThreads * kGroup;
        const std::int64_t begin = (simt::block_x() * kThreads + simt::thread()) * kGroup;
        for (std::int64_t i = begin; i < count; i += kAhead * step) {
            float values[kAhead][kGroup];
            for (int k = 0; k < kAhead; ++k) {
                load_some(values[k], x + i + k * step, count - i - k * step, vectors, 0.0F);
            }
            for (int k = 0; k < kAhead; ++k) {
                for (int j = 0; j < kGroup; ++j) {
                    sums[j] += static_cast<double>(values[k][j]) * static_cast<double>(values[k][j]);
                }
            }
        }
        const double sum = reduce_block<Sum, kThreads>((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
        if (simt::thread() == 0) {
            partials[simt::block_x()] = sum;
        }
    }
};

template <typename S>
struct CountNonFinite {
    static constexpr int kThreads = cuda::kThreads;
    static constexpr int kMinBlocks = 0;
    static constexpr int kGroup = 8;
    Rows<const S> x;
    std::int64_t groups;
    std::int64_t groups_per_row;
    std::int64_t cols;
    std::int64_t* partials;
    bool vectors;

    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(std::int64_t, shared, kThreads / simt::kWarp);
        std::int64_t found = 0;
        const std::int64_t step = simt::grid_x() * kThreads;
        for (std::int64_t group = simt::block_x() * kThreads + simt::thread(); group < groups; group += step) {
            const std::int64_t row = group / groups_per_row;
            const std::int64_t col = (group - row * groups_per_row) * kGroup;
            S values[kGroup];
            load_some(values, x[row] + col, cols - col, vectors, S{});
            for (const S value : values) {
                const float element = simt::to_float(value);
                found += element - element == 0 ? 0 : 1;
            }
        }
        found = reduce_block<Sum, kThreads>(found, shared);
        if (simt::thread() == 0) {
            partials[simt::block_x()] = found;
        }
    }
};

/// One block: *result = sum of the partials, or with `add` that much more.
template <typename T>
struct SumPartials {
    static constexpr int kThreads = cuda::kThreads;
    static constexpr int kMinBlocks = 0;
    const T* partials;
    std::int64_t count;
    T* result;
    bool add;

    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(T, shared, kThreads / simt::kWarp);
        T sum = 0;
        for (std::int64_t i = simt::thread(); i < count; i += kThreads) {
            sum += partials[i];
        }
        sum = reduce_block<Sum, kThreads>(sum, shared);
        if (simt::thread() == 0) {
            *result = add ? *result + sum : sum;
        }
    }
};

/// Blocks for so many groups of elements: every thread has several.
std::int64_t blocks_for(std::int64_t groups) {
    constexpr std::int64_t kThreadGroups = 4;
    return std::min(kMostBlocks, ceil_div(groups, kThreads * kThreadGroups));
}

}  // namespace

void sum_rows(simt::Stream stream, Matrix y, ConstMatrix pieces, bool add) {
    with_storage(pieces.dtype, [&](auto type) {
        using P = decltype(type);
        const SumRows<P> body{y.as<float>(), rows_of<P>(pieces), pieces.rows, add};
        for_elements(stream, 1, y.cols, all_aligned<SumRows<P>::kGroup>(y, pieces), body);
    });
}

std::int64_t reduction_workspace_bytes() {
    return kMostBlocks * static_cast<std::int64_t>(std::max(sizeof(double), sizeof(std::int64_t)));
}

void squared_norm(simt::Stream stream, double* sum, ConstMatrix x, bool add, std::span<std::byte> workspace) {
    const std::int64_t count = x.elements();
    const std::int64_t blocks = blocks_for(ceil_div(count, SumSquares::kGroup));
    auto* partials = workspace_as<double>(workspace, blocks);
    if (count > 0) {
        simt::launch(stream, {.x = blocks}, SumSquares{x.as<float>(), count, partials, aligned<SumSquares::kGroup>(x)});
    }
    simt::launch(stream, {}, SumPartials<double>{partials, blocks, sum, add});
}

void count_non_finite(simt::Stream stream, std::int64_t* count, ConstMatrix x, std::span<std::byte> workspace) {
    if (x.empty()) {
        return;
    }
    with_storage(x.dtype, [&](auto type) {
        using Kernel = CountNonFinite<decltype(type)>;
        const std::int64_t groups_per_row = ceil_div(x.cols, Kernel::kGroup);
        const std::int64_t groups = x.rows * groups_per_row;
        const std::int64_t blocks = blocks_for(groups);
        auto* partials = workspace_as<std::int64_t>(workspace, blocks);
        simt::launch(
            stream, {.x = blocks},
            Kernel{rows_of<decltype(type)>(x), groups, groups_per_row, x.cols, partials, aligned<Kernel::kGroup>(x)});
        simt::launch(stream, {}, SumPartials<std::int64_t>{partials, blocks, count, true});
    });
}

}  // namespace tessera::cuda
