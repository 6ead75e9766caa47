// dk and dv: one block computes a tile of keys of one key-value head, walking the queries that see them, head after
// head of its group. Scores stand as [key, query] here, so that the products with queries and with gradients of outputs
// are those of the other kernels. Two buffers of queries, gradients of outputs and statistics take turns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_backward.h"

namespace tessera::cuda {

/// What a launch computes: where the registers do not hold both sums, each has a launch of its own.
enum class KeyGradients { both, keys, values };

template <typename S, int D, KeyGradients kWhich>
struct AttentionBackwardKeys {
    using Engine = typename AttentionSizes<S, D>::BackwardKeys;
    static constexpr bool kOfKeys = kWhich != KeyGradients::values;
    static constexpr bool kOfValues = kWhich != KeyGradients::keys;
    static constexpr int kThreads = Engine::kThreads;
    static constexpr int kMinBlocks = 0;
    static constexpr int kKeys = Engine::kRows;
    static constexpr int kQueries = Engine::kColumns;
    static constexpr int kValuesAt = kKeys * kSharedRowBytes<S, D>;
    static constexpr int kStagesAt = 2 * kValuesAt;  // queries and gradients of one stage, then of the other
    static constexpr int kHalfStage = kQueries * kSharedRowBytes<S, D>;
    static constexpr int kStatisticsAt = kStagesAt + 4 * kHalfStage;  // of both stages: lse2, mean
    static constexpr int kScratchAt = kStatisticsAt + 4 * kQueries * static_cast<int>(sizeof(float));
    static constexpr int kSharedBytes = kScratchAt + Engine::kScratchBytes;
    static_assert(kSharedBytes <= kLargestSharedBytes);

    BackwardInputs<S> in;
    HeadRows<S> dk;
    HeadRows<S> dv;

    SIMT_DEVICE void operator()() const {
        std::byte* shared = simt::dynamic_shared();
        const SharedRows<S, D> keys{reinterpret_cast<S*>(shared)};
        const SharedRows<S, D> values{reinterpret_cast<S*>(shared + kValuesAt)};
        const auto queries_of = [&](int stage) {
            return SharedRows<S, D>{reinterpret_cast<S*>(shared + kStagesAt + stage * 2 * kHalfStage)};
        };
        const auto output_gradients_of = [&](int stage) { return queries_of(stage).from(kQueries); };
        const auto statistics_of = [&](int stage) {
            return reinterpret_cast<float*>(shared + kStatisticsAt) + stage * 2 * kQueries;
        };

        // The first tiles of a segment are seen by most queries: first.
        const AttentionTile tile = in.tiles[simt::block_x()];
        const std::int64_t kv_head = simt::block_y();
        const int first = static_cast<int>(tile.first - tile.begin);
        const int length = static_cast<int>(tile.end - tile.begin);
        const int rows = simt::min(kKeys, length - first);
        const int queries_end = in.window.queries_end(first + rows - 1, length);

        // The first kQueries threads carry the statistics of a tile, one query each, through two registers.
        float lse2 = 0;
        float mean = 0;
        const auto load_tile = [&](int stage, int member, int query) {
            const std::int64_t head = kv_head * in.group + member;
            const std::int64_t token = tile.begin + query;
            load_rows<kQueries, kThreads>(queries_of(stage), in.q.at(token, head), queries_end - query);
            load_rows<kQueries, kThreads>(output_gradients_of(stage), in.dout.at(token, head), queries_end - query);
            simt::commit_copies();
            if (simt::thread() < kQueries) {
                const bool inside = query + simt::thread() < queries_end;
                const QueryStatistics own = in.statistics.at(token + simt::thread(), head);
                lse2 = inside ? *own.lse2 : kInfinity;  // then all weights are 0
                mean = inside ? *own.mean : 0;
            }
        };
        const auto put_statistics = [&](int stage) {
            if (simt::thread() < kQueries) {
                statistics_of(stage)[simt::thread()] = lse2;
                statistics_of(stage)[kQueries + simt::thread()] = mean;
            }
        };

        load_rows<kKeys, kThreads>(keys, in.k.at(tile.first, kv_head), rows);
        if (kOfKeys) {
            load_rows<kKeys, kThreads>(values, in.v.at(tile.first, kv_head), rows);
        }
        load_tile(0, 0, first);
        put_statistics(0);
        typename Engine::Output key_gradients;
        typename Engine::Output value_gradients;
        key_gradients.clear();
        value_gradients.clear();
        int member = 0;  // of the group
        int query = first;
        for (int stage = 0; member < in.group; stage = 1 - stage) {
            const bool last_of_head = query + kQueries >= queries_end;
            const int next_member = last_of_head ? member + 1 : member;
            const int next_query = last_of_head ? first : query + kQueries;
            const bool another = next_member < in.group;
            simt::wait_copies<0>();
            simt::sync_block();  // this stage is there, and nobody reads the other
            if (another) {
                load_tile(1 - stage, next_member, next_query);
            }
            typename Engine::Scores scores;
            Engine::multiply(scores, keys, queries_of(stage));
            scale_and_mask<ScoreRows::keys, Engine>(scores, in.factor, in.window, first, query);
            const float* statistics = statistics_of(stage);
            SIMT_UNROLL
            for (int j = 0; j < Engine::kThreadColumns; ++j) {
                const float base = statistics[Engine::column(j)];
                SIMT_UNROLL
                for (int i = 0; i < Engine::kThreadRows; ++i) {
                    scores.at(i, j) = simt::exp2_approx(scores.at(i, j) - base);
                }
            }
            if constexpr (kOfValues) {
                Engine::accumulate(value_gradients, scores, output_gradients_of(stage), shared + kScratchAt);
            }
            if constexpr (kOfKeys) {
                typename Engine::Scores gradients;
                Engine::multiply(gradients, values, output_gradients_of(stage));
                SIMT_UNROLL
                for (int j = 0; j < Engine::kThreadColumns; ++j) {
                    const float shift = statistics[kQueries + Engine::column(j)];
                    SIMT_UNROLL
                    for (int i = 0; i < Engine::kThreadRows; ++i) {
                        gradients.at(i, j) = scores.at(i, j) * (gradients.at(i, j) - shift);
                    }
                }
                Engine::accumulate(key_gradients, gradients, queries_of(stage), shared + kScratchAt);
            }
            if (another) {
                put_statistics(1 - stage);
            }
            member = next_member;
            query = next_query;
        }
        simt::sync_block();
        if constexpr (kOfKeys) {
            store_output<Engine>(dk.at(tile.first, kv_head), keys, key_gradients, in.scale, rows);
        }
        if constexpr (kOfValues) {
            store_output<Engine>(dv.at(tile.first, kv_head), values, value_gradients, 1, rows);
        }
    }
};

template <typename S, int D>
void launch_attention_backward_keys(simt::Stream stream, const BackwardCall& call) {
    const auto launch = [&]<KeyGradients kWhich>() {
        using Kernel = AttentionBackwardKeys<S, D, kWhich>;
        const Kernel kernel{.in = BackwardInputs<S>(call),
                            .dk = head_rows<S>(call.dk, call.shape.head_dim),
                            .dv = head_rows<S>(call.dv, call.shape.head_dim)};
        const simt::Grid grid{.x = static_cast<std::int64_t>(call.tiles.size()), .y = call.shape.kv_heads};
        simt::launch(stream, grid, kernel, Kernel::kSharedBytes);
    };
    if constexpr (AttentionSizes<S, D>::kBothKeyGradients) {
        launch.template operator()<KeyGradients::both>();
    } else {
        launch.template operator()<KeyGradients::values>();
        launch.template operator()<KeyGradients::keys>();
    }
}

}  // namespace tessera::cuda
