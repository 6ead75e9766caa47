#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rmsnorm_teams.h"
#include "kernels/cuda/workspace.h"

namespace tessera::cuda {

namespace {

/// The gradient of the weight is summed by at most so many blocks, of which each team has at least kTeamGroups groups,
/// and then over the blocks.
constexpr std::int64_t kMostPartials = 512;
constexpr std::int64_t kTeamGroups = 8;
/// The longest row that a block sums in shared memory, of which it may have 48 KiB without asking.
constexpr std::int64_t kSharedColumns = (12 << 10) - 2 * rmsnorm::kThreads / simt::kWarp;

/// Team s of all teams takes the groups s, s + teams, ...; a block writes the sum of its gradients of the weight to its
/// row of `partials`. Each team sums its own in shared memory, or where that is too small for a row in `partials`.
template <typename S, bool kWholeBlock, bool kVectors>
struct NormBackward {
    static constexpr int kThreads = rmsnorm::kThreads;
    static constexpr int kMinBlocks = 2;
    static constexpr int kKept = kVectors ? rmsnorm::kKept<S> : 1;
    static constexpr int kChunk = rmsnorm::kChunk;
    rmsnorm::Team<kWholeBlock> team;
    Rows<S> dx;
    Rows<float> partials;     // [blocks, round_up(cols, kChunk)], or null
    Rows<const S> dresidual;  // or null
    Rows<const S> dy;
    Rows<const S> x;
    Rows<const float> rstd;
    const S* weight;
    std::int64_t count;   // of groups, in all rows
    std::int64_t groups;  // of a row
    std::int64_t cols;
    bool sums_in_shared;

    /// Of one group: where its first element lies in each operand, and what its elements are multiplied by.
    struct Group {
        S* dx;
        const S* dresidual;
        const S* dy;
        const S* x;
        float scale;
        float mean;
    };
    struct Chunks {
        rmsnorm::Chunk<S> dy;
        rmsnorm::Chunk<S> x;
        rmsnorm::Chunk<S> residual;
    };

    SIMT_DEVICE void load_kept(Chunks (&kept)[kKept], const Group& group, std::int64_t first, std::int64_t step) const {
        for (int k = 0; k < kKept; ++k) {
            const std::int64_t col = first + k * step;
            if (col < cols) {
                kept[k].dy.template load<kVectors>(group.dy + col, cols - col);
                kept[k].x.template load<kVectors>(group.x + col, cols - col);
                if (dresidual.data != nullptr) {
                    kept[k].residual.template load<kVectors>(group.dresidual + col, cols - col);
                }
            }
        }
    }
    /// Adds dy * weight * normed x to `dot`.
    SIMT_DEVICE float add_products(float dot, const Chunks& chunks, const Group& group, std::int64_t col) const {
        rmsnorm::Chunk<S> weights;
        weights.template load<kVectors>(weight + col, cols - col);
        for (int i = 0; i < kChunk; ++i) {
            dot += chunks.dy[i] * weights[i] * (chunks.x[i] * group.scale);
        }
        return dot;
    }
    /// Writes a chunk of dx and, unless it is null, adds to the team's gradient of the weight.
    SIMT_DEVICE void store(const Chunks& chunks, float* dweight, const Group& group, std::int64_t col) const {
        rmsnorm::Chunk<S> weights;
        float sums[kChunk] = {};
        float result[kChunk];
        weights.template load<kVectors>(weight + col, cols - col);
        if (dweight != nullptr) {
            load_elements(sums, dweight + col);
        }
        for (int i = 0; i < kChunk; ++i) {
            const float normed = chunks.x[i] * group.scale;
            sums[i] += chunks.dy[i] * normed;
            result[i] = group.scale * simt::fma(-normed, group.mean, chunks.dy[i] * weights[i]);
            if (dresidual.data != nullptr) {
                result[i] += chunks.residual[i];
            }
        }
        if (dweight != nullptr) {
            store_elements(dweight + col, sums);
        }
        rmsnorm::Chunk<S> rounded;
        rounded.set(result);
        rounded.template store<kVectors>(group.dx + col, cols - col);
    }

    SIMT_DEVICE void operator()() const {
        SIMT_SHARED(float, shared, 2 * kThreads / simt::kWarp);
        const std::int64_t step = team.size() * kChunk;
        const std::int64_t teams = simt::grid_x() * team.slots();
        const bool all_kept = cols <= kKept * step;
        float* dweight = nullptr;  // of the team; its threads touch only their own columns
        if (partials.data != nullptr) {
            dweight = partials[simt::block_x()];
            if (sums_in_shared) {
                dweight = reinterpret_cast<float*>(simt::dynamic_shared()) + team.slot() * partials.stride;
            }
            for (std::int64_t col = team.rank() * kChunk; col < cols; col += step) {
                const float zeros[kChunk] = {};
                store_elements(dweight + col, zeros);
            }
        }
        int turn = 0;
        // All teams of a block make the same turns: they meet in the sums.
        for (std::int64_t base = simt::block_x() * team.slots(); base < count; base += teams, ++turn) {
            const std::int64_t number = base + team.slot();
            const bool works = number < count;
            const std::int64_t row = works ? number / groups : 0;
            const std::int64_t in_row = works ? number - row * groups : 0;
            const std::int64_t first = in_row * cols;
            const std::int64_t begin = works ? team.rank() * kChunk : cols;
            Group group{dx[row] + first, dresidual[row] + first, dy[row] + first, x[row] + first, rstd[row][in_row], 0};
            Chunks kept[kKept];
            float dot = 0;
            for (std::int64_t start = begin; start < cols; start += kKept * step) {
                load_kept(kept, group, start, step);
                for (int k = 0; k < kKept; ++k) {
                    const std::int64_t col = start + k * step;
                    if (col < cols) {
                        dot = add_products(dot, kept[k], group, col);
                    }
                }
            }
            // Two places in turn: a thread may be in the next sum while another still reads this one.
            dot = team.sum(dot, shared + turn % 2 * (kThreads / simt::kWarp));
            group.mean = dot / static_cast<float>(cols);
            for (std::int64_t start = begin; start < cols; start += kKept * step) {
                if (!all_kept) {
                    load_kept(kept, group, start, step);
                }
                for (int k = 0; k < kKept; ++k) {
                    const std::int64_t col = start + k * step;
                    if (col < cols) {
                        store(kept[k], dweight, group, col);
                    }
                }
            }
        }
        if (partials.data == nullptr || !sums_in_shared) {
            return;
        }
        simt::sync_block();
        const auto* sums = reinterpret_cast<const float*>(simt::dynamic_shared());  // [slots, partials.stride]
        for (std::int64_t col = simt::thread(); col < cols; col += kThreads) {
            float sum = 0;
            for (int slot = 0; slot < team.slots(); ++slot) {
                sum += sums[slot * partials.stride + col];
            }
            partials[simt::block_x()][col] = sum;
        }
    }
};

std::int64_t blocks_for(std::int64_t groups, std::int64_t cols) {
    const std::int64_t teams = rmsnorm::kThreads / rmsnorm::team_size(cols);
    return std::min(kMostPartials, ceil_div(groups, teams * kTeamGroups));
}

/// Rows of the partial sums begin at multiples of a chunk.
std::int64_t partial_stride(std::int64_t cols) {
    return round_up(cols, rmsnorm::kChunk);
}

}  // namespace

std::int64_t rmsnorm_backward_workspace_bytes(std::int64_t groups, std::int64_t cols) {
    return checked_mul(blocks_for(groups, cols), partial_stride(cols) * size_of(DType::f32), "RMSNorm");
}

void rmsnorm_backward(simt::Stream stream, Matrix dx, Matrix dweight, ConstMatrix dresidual, ConstMatrix dy,
                      ConstMatrix x, ConstMatrix rstd, ConstMatrix weight, std::span<std::byte> workspace) {
    const std::int64_t count = rstd.elements();
    const std::int64_t cols = weight.cols;
    if (count == 0) {
        return;
    }
    const std::int64_t blocks = blocks_for(count, cols);
    Matrix partials;
    if (!dweight.empty()) {
        float* memory = workspace_as<float>(workspace, blocks * partial_stride(cols));
        partials = Matrix(reinterpret_cast<std::byte*>(memory), DType::f32, blocks, cols, partial_stride(cols));
    }
    const auto run = [&](auto type, auto team, auto vectors) {
        using S = decltype(type);
        using Kernel = NormBackward<S, std::is_same_v<decltype(team), rmsnorm::Team<true>>, vectors.value>;
        const bool in_shared = !partials.empty() && cols <= kSharedColumns;
        const std::int64_t sums = in_shared ? Kernel::kThreads / team.lanes * partials.stride : 0;
        const Kernel kernel{team,
                            rows_of<S>(dx),
                            rows_of<float>(partials),
                            rows_of<S>(dresidual),
                            rows_of<S>(dy),
                            rows_of<S>(x),
                            rows_of<float>(rstd),
                            weight.as<S>(),
                            count,
                            rstd.cols,
                            cols,
                            in_shared};
        simt::launch(stream, {.x = blocks}, kernel, sums * size_of(DType::f32));
    };
    rmsnorm::with_kernel(x.dtype, cols, run, dx, dresidual, dy, x, weight);
    if (!partials.empty()) {
        add_column_sums(stream, dweight, partials, {});
    }
}

}  // namespace tessera::cuda
