// dq: one block computes a tile of queries of one head, walking the keys they see from the latest tile to the earliest.
// Two buffers of keys and values take turns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_backward.h"

namespace tessera::cuda {

template <typename S, int D>
struct AttentionBackwardQueries {
    using Engine = typename AttentionSizes<S, D>::BackwardQueries;
    static constexpr int kThreads = Engine::kThreads;
    static constexpr int kMinBlocks = 0;
    static constexpr int kQueries = Engine::kRows;
    static constexpr int kKeys = Engine::kColumns;
    static constexpr int kOutputGradientsAt = kQueries * kSharedRowBytes<S, D>;
    static constexpr int kStagesAt = 2 * kOutputGradientsAt;  // keys and values of one stage, then of the other
    static constexpr int kHalfStage = kKeys * kSharedRowBytes<S, D>;
    static constexpr int kScratchAt = kStagesAt + 4 * kHalfStage;
    static constexpr int kSharedBytes = kScratchAt + Engine::kScratchBytes;
    static_assert(kSharedBytes <= kLargestSharedBytes);

    BackwardInputs<S> in;
    HeadRows<S> dq;

    SIMT_DEVICE void operator()() const {
        std::byte* shared = simt::dynamic_shared();
        const SharedRows<S, D> queries{reinterpret_cast<S*>(shared)};
        const SharedRows<S, D> output_gradients{reinterpret_cast<S*>(shared + kOutputGradientsAt)};

        // The last tiles of a segment see most keys: first.
        const AttentionTile tile = in.tiles[simt::grid_x() - 1 - simt::block_x()];
        const std::int64_t head = simt::block_y();
        const std::int64_t kv_head = head / in.group;
        const int first = static_cast<int>(tile.first - tile.begin);
        const int rows = simt::min(kQueries, static_cast<int>(tile.end - tile.first));
        const int first_tile = in.window.first_key(first) / kKeys;
        const int last_tile = (first + rows - 1) / kKeys;
        const auto keys_of = [&](int stage) {
            return SharedRows<S, D>{reinterpret_cast<S*>(shared + kStagesAt + stage * 2 * kHalfStage)};
        };
        const auto values_of = [&](int stage) { return keys_of(stage).from(kKeys); };
        const auto load_tile = [&](int stage, int number) {
            const int key = number * kKeys;
            load_rows<kKeys, kThreads>(keys_of(stage), in.k.at(tile.begin + key, kv_head), first + rows - key);
            load_rows<kKeys, kThreads>(values_of(stage), in.v.at(tile.begin + key, kv_head), first + rows - key);
            simt::commit_copies();
        };

        load_rows<kQueries, kThreads>(queries, in.q.at(tile.first, head), rows);
        load_rows<kQueries, kThreads>(output_gradients, in.dout.at(tile.first, head), rows);
        load_tile(0, last_tile);
        float lse2[Engine::kThreadRows];
        float mean[Engine::kThreadRows];
        SIMT_UNROLL
        for (int i = 0; i < Engine::kThreadRows; ++i) {
            const int row = Engine::row(i);
            const QueryStatistics own = in.statistics.at(tile.first + row, head);
            lse2[i] = row < rows ? *own.lse2 : kInfinity;  // then all weights are 0
            mean[i] = row < rows ? *own.mean : 0;
        }
        typename Engine::Output output;
        output.clear();
        int stage = 0;
        for (int number = last_tile; number >= first_tile; --number) {
            simt::wait_copies<0>();
            simt::sync_block();  // this stage is there, and nobody reads the other
            if (number > first_tile) {
                load_tile(1 - stage, number - 1);
            }
            typename Engine::Scores scores;
            Engine::multiply(scores, queries, keys_of(stage));
            scale_and_mask<ScoreRows::queries, Engine>(scores, in.factor, in.window, first, number * kKeys);
            typename Engine::Scores gradients;
            Engine::multiply(gradients, output_gradients, values_of(stage));
            SIMT_UNROLL
            for (int i = 0; i < Engine::kThreadRows; ++i) {
                SIMT_UNROLL
                for (int j = 0; j < Engine::kThreadColumns; ++j) {
                    const float weight = simt::exp2_approx(scores.at(i, j) - lse2[i]);
                    gradients.at(i, j) = weight * (gradients.at(i, j) - mean[i]);
                }
            }
            Engine::accumulate(output, gradients, keys_of(stage), shared + kScratchAt);
            stage = 1 - stage;
        }
        simt::sync_block();
        store_output<Engine>(dq.at(tile.first, head), queries, output, in.scale, rows);
    }
};

template <typename S, int D>
void launch_attention_backward_queries(simt::Stream stream, const BackwardCall& call) {
    using Kernel = AttentionBackwardQueries<S, D>;
    const Kernel kernel{.in = BackwardInputs<S>(call), .dq = head_rows<S>(call.dq, call.shape.head_dim)};
    const simt::Grid grid{.x = static_cast<std::int64_t>(call.tiles.size()), .y = call.shape.heads};
    simt::launch(stream, grid, kernel, Kernel::kSharedBytes);
}

}  // namespace tessera::cuda
