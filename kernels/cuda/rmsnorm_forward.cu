#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rmsnorm_teams.h"

namespace tessera::cuda {

namespace {

template <typename S, bool kWholeBlock, bool kVectors>
struct AddNormForward {
    static constexpr int kThreads = rmsnorm::kThreads;
    static constexpr int kMinBlocks = 3;
    static constexpr int kKept = kVectors ? rmsnorm::kKept<S> : 1;
    static constexpr int kChunk = rmsnorm::kChunk;
    using Chunk = rmsnorm::Chunk<S>;
    rmsnorm::Team<kWholeBlock> team;
    Rows<S> y;
    Rows<float> rstd;
    Rows<S> sum;
    Rows<const S> x;
    Rows<const S> delta;  // null: x is what is normalised
    const S* weight;
    std::int64_t count;   // of groups, in all rows
    std::int64_t groups;  // of a row
    std::int64_t cols;
    float eps;

    /// Makes x the sum where there is one, stores it and adds its squares.
    SIMT_DEVICE float add_squares(float squares, Chunk& x_chunk, const Chunk& delta_chunk, S* sum_row,
                                  std::int64_t col) const {
        if (delta.data != nullptr) {
            float values[kChunk];
            for (int i = 0; i < kChunk; ++i) {
                values[i] = x_chunk[i] + delta_chunk[i];
            }
            x_chunk.set(values);
            x_chunk.template store<kVectors>(sum_row + col, cols - col);
        }
        for (int i = 0; i < kChunk; ++i) {
            squares += x_chunk[i] * x_chunk[i];
        }
        return squares;
    }
    SIMT_DEVICE void store_normed(const Chunk& chunk, float scale, S* y_row, std::int64_t col) const {
        Chunk weights;
        float values[kChunk];
        weights.template load<kVectors>(weight + col, cols - col);
        for (int i = 0; i < kChunk; ++i) {
            values[i] = round_to<S>(chunk[i] * scale) * weights[i];
        }
        Chunk result;
        result.set(values);
        result.template store<kVectors>(y_row + col, cols - col);
    }

    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, shared, kThreads / simt::kWarp);
        const std::int64_t number = simt::block_x() * team.slots() + team.slot();
        const bool works = number < count;
        const std::int64_t row = works ? number / groups : 0;
        const std::int64_t group = works ? number - row * groups : 0;
        const S* x_row = x[row] + group * cols;
        const S* delta_row = delta[row] + group * cols;
        S* sum_row = sum[row] + group * cols;
        S* y_row = y[row] + group * cols;
        const std::int64_t begin = works ? team.rank() * kChunk : cols;
        const std::int64_t step = team.size() * kChunk;
        const bool all_kept = cols <= kKept * step;
        Chunk kept[kKept];
        float squares = 0;
        for (std::int64_t base = begin; base < cols; base += kKept * step) {
            Chunk deltas[kKept];
            for (int k = 0; k < kKept; ++k) {
                const std::int64_t col = base + k * step;
                if (col < cols) {
                    kept[k].template load<kVectors>(x_row + col, cols - col);
                    if (delta.data != nullptr) {
                        deltas[k].template load<kVectors>(delta_row + col, cols - col);
                    }
                }
            }
            for (int k = 0; k < kKept; ++k) {
                const std::int64_t col = base + k * step;
                if (col < cols) {
                    squares = add_squares(squares, kept[k], deltas[k], sum_row, col);
                }
            }
        }
        squares = team.sum(squares, shared);
        const float scale = 1 / simt::sqrt(squares / static_cast<float>(cols) + eps);
        if (works && team.rank() == 0) {
            rstd[row][group] = scale;
        }
        const S* summed = delta.data != nullptr ? sum_row : x_row;
        for (std::int64_t base = begin; base < cols; base += kKept * step) {
            for (int k = 0; k < kKept; ++k) {
                const std::int64_t col = base + k * step;
                if (col < cols && !all_kept) {
                    kept[k].template load<kVectors>(summed + col, cols - col);
                }
            }
            for (int k = 0; k < kKept; ++k) {
                const std::int64_t col = base + k * step;
                if (col < cols) {
                    store_normed(kept[k], scale, y_row, col);
                }
            }
        }
    }
};

}  // namespace

void add_rmsnorm_forward(simt::Stream stream, Matrix y, Matrix rstd, Matrix sum, ConstMatrix x, ConstMatrix delta,
                         ConstMatrix weight, double eps) {
    const std::int64_t count = rstd.elements();
    if (count == 0) {
        return;
    }
    if (delta.empty()) {
        sum = Matrix();
    }
    const auto run = [&](auto type, auto team, auto vectors) {
        using S = decltype(type);
        using Kernel = AddNormForward<S, std::is_same_v<decltype(team), rmsnorm::Team<true>>, vectors.value>;
        const Kernel kernel{team,          rows_of<S>(y),     rows_of<float>(rstd),   rows_of<S>(sum),
                            rows_of<S>(x), rows_of<S>(delta), weight.as<S>(),         count,
                            rstd.cols,     weight.cols,       static_cast<float>(eps)};
        simt::launch(stream, {.x = ceil_div(count, Kernel::kThreads / team.lanes)}, kernel);
    };
    rmsnorm::with_kernel(x.dtype, weight.cols, run, y, sum, x, delta, weight);
}

}  // namespace tessera::cuda
