// The forward pass: one block computes a tile of queries of one head, walking the keys they see from the latest tile,
// where the diagonal lies, to the earliest. Keys and values have a buffer each: the values of a tile travel while its
// scores are computed, the keys of the next one while its values are summed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_launches.h"
#include "kernels/cuda/attention_mask.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_sizes.h"
#include "kernels/cuda/attention_softmax.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

template <typename S, int D>
struct AttentionForward {
    using Engine = typename AttentionSizes<S, D>::Forward;
    static constexpr int kThreads = Engine::kThreads;
    static constexpr int kMinBlocks = 0;
    static constexpr int kQueries = Engine::kRows;
    static constexpr int kKeys = Engine::kColumns;
    static constexpr int kKeysAt = kQueries * kSharedRowBytes<S, D>;
    static constexpr int kValuesAt = kKeysAt + kKeys * kSharedRowBytes<S, D>;
    static constexpr int kScratchAt = kValuesAt + kKeys * kSharedRowBytes<S, D>;
    static constexpr int kSharedBytes = kScratchAt + Engine::kScratchBytes;
    static_assert(kSharedBytes <= kLargestSharedBytes);

    HeadRows<S> out;
    float* lse;
    std::int64_t lse_stride;
    HeadRows<const S> q;
    HeadRows<const S> k;
    HeadRows<const S> v;
    const AttentionTile* tiles;
    std::int64_t group;  // query heads of a key-value head
    float factor;        // of products, for logarithms to base 2
    CausalWindow window;

    SIMT_DEVICE void operator()() const {
        std::byte* shared = simt::dynamic_shared();
        const SharedRows<S, D> queries{reinterpret_cast<S*>(shared)};
        const SharedRows<S, D> keys{reinterpret_cast<S*>(shared + kKeysAt)};
        const SharedRows<S, D> values{reinterpret_cast<S*>(shared + kValuesAt)};

        // The last tiles of a segment see most keys; they go first, so that none of them is left alone at the end.
        const AttentionTile tile = tiles[simt::grid_x() - 1 - simt::block_x()];
        const std::int64_t head = simt::block_y();
        const std::int64_t kv_head = head / group;
        const int first = static_cast<int>(tile.first - tile.begin);
        const int rows = simt::min(kQueries, static_cast<int>(tile.end - tile.first));
        const int first_tile = window.first_key(first) / kKeys;
        const int last_tile = (first + rows - 1) / kKeys;
        const auto load_tile = [&](SharedRows<S, D> to, const HeadRows<const S>& from, int number) {
            const int key = number * kKeys;
            load_rows<kKeys, kThreads>(to, from.at(tile.begin + key, kv_head), first + rows - key);
            simt::commit_copies();
        };

        typename Engine::Output output;
        RunningSoftmax<Engine> softmax;
        output.clear();
        softmax.clear();
        load_rows<kQueries, kThreads>(queries, q.at(tile.first, head), rows);
        load_tile(keys, k, last_tile);
        for (int number = last_tile; number >= first_tile; --number) {
            simt::wait_copies<0>();
            simt::sync_block();  // the keys are there, and nobody reads the values of the tile before
            load_tile(values, v, number);
            typename Engine::Scores scores;
            Engine::multiply(scores, queries, keys);
            simt::wait_copies<0>();
            simt::sync_block();  // the values are there, and nobody reads the keys
            if (number > first_tile) {
                load_tile(keys, k, number - 1);
            }
            scale_and_mask<ScoreRows::queries, Engine>(scores, factor, window, first, number * kKeys);
            softmax.add(scores, output);
            Engine::accumulate(output, scores, values, shared + kScratchAt);
        }

        float inverse[Engine::kThreadRows];
        SIMT_UNROLL
        for (int i = 0; i < Engine::kThreadRows; ++i) {
            const float total = Engine::row_sum(softmax.sum[i]);
            inverse[i] = 1 / total;
            const int row = Engine::row(i);
            if (Engine::leads_row() && row < rows) {
                lse[(tile.first + row) * lse_stride + head] = softmax.largest[i] * kLn2 + simt::log(total);
            }
        }
        Engine::put(queries, output, inverse);
        simt::sync_block();
        store_rows<kQueries, kThreads>(out.at(tile.first, head), queries, rows);
    }
};

template <typename S, int D>
void launch_attention_forward(simt::Stream stream, const ForwardCall& call) {
    using Kernel = AttentionForward<S, D>;
    const AttentionShape& shape = call.shape;
    const Kernel kernel{.out = head_rows<S>(call.out, shape.head_dim),
                        .lse = call.lse.as<float>(),
                        .lse_stride = call.lse.stride,
                        .q = head_rows<const S>(call.q, shape.head_dim),
                        .k = head_rows<const S>(call.k, shape.head_dim),
                        .v = head_rows<const S>(call.v, shape.head_dim),
                        .tiles = call.tiles.data(),
                        .group = shape.heads / shape.kv_heads,
                        .factor = static_cast<float>(shape.scale * kLog2E),
                        .window = causal_window(shape.window)};
    const simt::Grid grid{.x = static_cast<std::int64_t>(call.tiles.size()), .y = shape.heads};
    simt::launch(stream, grid, kernel, Kernel::kSharedBytes);
}

}  // namespace tessera::cuda
