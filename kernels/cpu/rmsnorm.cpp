#include "kernels/cpu/rmsnorm.h"

#include <cmath>

#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"

namespace tessera::cpu {

namespace {

/// Elements that are summed in float before they join a sum in double.
constexpr std::int64_t kRun = 1024;

/// Gradients of the weight are summed over this many ranges of rows at most, each in order, then over the ranges in
/// order: the result does not depend on the number of threads.
constexpr std::int64_t kRanges = 64;
constexpr std::int64_t kRangeRows = 16;

/// Sum over i of term(i, lanes), a Vec with zeros beyond a part.
template <typename Term>
double sum_of(std::int64_t count, const Term& term) {
    double total = 0;
    for (std::int64_t begin = 0; begin < count; begin += kRun) {
        const std::int64_t length = std::min(kRun, count - begin);
        Vec sums[4] = {};  // independent chains
        std::int64_t i = 0;
        for (; i + 4 * kLanes <= length; i += 4 * kLanes) {
            for (int j = 0; j < 4; ++j) {
                sums[j] = sums[j] + term(begin + i + j * kLanes, Full{});
            }
        }
        for_vectors(length - i, [&](std::int64_t j, auto lanes) { sums[0] = sums[0] + term(begin + i + j, lanes); });
        total += sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    return total;
}

template <typename S>
void forward_row(S* y, float* rstd, S* sum, const S* x, const S* delta, const S* weight, std::int64_t groups,
                 std::int64_t cols, double eps) {
    for (std::int64_t g = 0; g < groups; ++g) {
        const std::int64_t first = g * cols;
        const S* row = x + first;
        if (delta != nullptr) {
            for_vectors(cols, [&](std::int64_t i, auto lanes) {
                store(sum + first + i, load(x + first + i, lanes) + load(delta + first + i, lanes), lanes);
            });
            row = sum + first;
        }
        const double squares = sum_of(cols, [&](std::int64_t i, auto lanes) {
            const Vec value = load(row + i, lanes);
            return value * value;
        });
        const auto scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(cols) + eps));
        rstd[g] = scale;
        const Vec factor = broadcast(scale);
        for_vectors(cols, [&](std::int64_t i, auto lanes) {
            const Vec normed = round_to<S>(load(row + i, lanes) * factor);
            store(y + first + i, normed * load(weight + i, lanes), lanes);
        });
    }
}

/// dx and, where `partial` is not null, partial += dy * x * rstd. With xh = x rstd and g = dy w:
/// dx = rstd (g - xh mean(g xh)) + dresidual.
template <typename S>
void backward_group(S* dx, float* partial, const S* dresidual, const S* dy, const S* x, float rstd, const S* weight,
                    std::int64_t cols) {
    const double dot = sum_of(cols, [&](std::int64_t i, auto lanes) {
        return load(dy + i, lanes) * load(weight + i, lanes) * load(x + i, lanes);
    });
    const double scale = static_cast<double>(rstd);
    const Vec factor = broadcast(rstd);
    const Vec slope = broadcast(static_cast<float>(-dot * scale * scale * scale / static_cast<double>(cols)));
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
        const Vec gradient = load(dy + i, lanes);
        const Vec value = load(x + i, lanes);
        if (partial != nullptr) {
            store(partial + i, fma(gradient * value, factor, load(partial + i, lanes)), lanes);
        }
        Vec result = fma(value, slope, gradient * load(weight + i, lanes) * factor);
        if (dresidual != nullptr) {
            result = result + load(dresidual + i, lanes);
        }
        store(dx + i, result, lanes);
    });
}

}  // namespace

void add_rmsnorm_forward(Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta, ConstMatrix weight,
                         double eps, DType storage, int threads) {
    const std::int64_t cols = weight.cols;
    const std::int64_t groups = rstd.cols;
    const bool adds = !delta.empty();
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_for(threads, x.rows, x.elements(), [&](std::int64_t t) {
            forward_row<S>(y.as<S>() + t * y.stride, rstd.as<float>() + t * rstd.stride,
                           adds ? sum.as<S>() + t * sum.stride : nullptr, x.as<S>() + t * x.stride,
                           adds ? delta.as<S>() + t * delta.stride : nullptr, weight.as<S>(), groups, cols, eps);
        });
    });
}

std::int64_t rmsnorm_workspace(std::int64_t columns) {
    return workspace_of<float>(checked_mul(kRanges, round_up(columns, 16), "columns"));
}

void rmsnorm_backward(Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy, ConstMatrix x, ConstMatrix rstd,
                      ConstMatrix weight, DType storage, std::span<std::byte> workspace, int threads) {
    const std::int64_t cols = weight.cols;
    const std::int64_t groups = rstd.cols;
    const bool has_residual = !dresidual.empty();
    const bool has_weight_gradient = !dweight.empty();
    if (x.rows == 0) {
        return;
    }
    const std::int64_t range_rows = round_up(ceil_div(x.rows, kRanges), kRangeRows);
    const std::int64_t ranges = ceil_div(x.rows, range_rows);
    const std::int64_t partial_stride = round_up(cols, 16);
    float* partials = has_weight_gradient ? Scratch(workspace).take<float>(ranges * partial_stride) : nullptr;
    with_storage(storage, [&](auto type) {
        using S = decltype(type);
        parallel_for(threads, ranges, x.elements(), [&](std::int64_t range) {
            float* partial = partials == nullptr ? nullptr : partials + range * partial_stride;
            if (partial != nullptr) {
                std::fill_n(partial, cols, 0.0F);
            }
            for (std::int64_t t = range * range_rows; t < std::min((range + 1) * range_rows, x.rows); ++t) {
                for (std::int64_t g = 0; g < groups; ++g) {
                    const std::int64_t first = g * cols;
                    backward_group<S>(dx.as<S>() + t * dx.stride + first, partial,
                                      has_residual ? dresidual.as<S>() + t * dresidual.stride + first : nullptr,
                                      dy.as<S>() + t * dy.stride + first, x.as<S>() + t * x.stride + first,
                                      rstd.as<float>()[t * rstd.stride + g], weight.as<S>(), cols);
                }
            }
        });
    });
    if (partials != nullptr) {
        auto* sums = dweight.as<float>();
        for_vectors(cols, [&](std::int64_t i, auto lanes) {
            Vec total = load(partials + i, lanes);
            for (std::int64_t range = 1; range < ranges; ++range) {
                total = total + load(partials + range * partial_stride + i, lanes);
            }
            store(sums + i, load(sums + i, lanes) + total, lanes);
        });
    }
}

}  // namespace tessera::cpu
