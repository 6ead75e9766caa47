// What the kernels of the backward pass have in common. With P = 2^(scores - lse) and D = rowsum(dout * out):
//   dv = PT dout; dS = P * (dout vT - D); dq = scale dS k; dk = scale dST q.
// Scores are computed anew from q and k. One kernel prepares lse and D; one goes over tiles of queries for dq, one over
// tiles of keys for dk and dv, so that every sum is of one block and has one order.
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

/// What both kernels over tiles read.
template <typename S>
struct BackwardInputs {
    HeadRows<const S> dout;
    HeadRows<const S> q;
    HeadRows<const S> k;
    HeadRows<const S> v;
    QueryStatistics statistics;
    const AttentionTile* tiles;
    int group;  // query heads of a key-value head
    float scale;
    float factor;  // of products, for logarithms to base 2
    CausalWindow window;

    explicit BackwardInputs(const BackwardCall& call)
        : dout(head_rows<const S>(call.dout, call.shape.head_dim)),
          q(head_rows<const S>(call.q, call.shape.head_dim)),
          k(head_rows<const S>(call.k, call.shape.head_dim)),
          v(head_rows<const S>(call.v, call.shape.head_dim)),
          statistics(call.statistics),
          tiles(call.tiles.data()),
          group(static_cast<int>(call.shape.heads / call.shape.kv_heads)),
          scale(static_cast<float>(call.shape.scale)),
          factor(static_cast<float>(call.shape.scale * kLog2E)),
          window(causal_window(call.shape.window)) {}
};

/// A thread's rows of the output of one product, times `scale`, by way of shared memory that nobody reads any more.
template <typename Engine, typename S, int D>
SIMT_DEVICE void store_output(HeadRows<S> to, SharedRows<S, D> by, typename Engine::Output& output, float scale,
                              int rows) {
    float factors[Engine::kThreadRows];
    SIMT_UNROLL
    for (int i = 0; i < Engine::kThreadRows; ++i) {
        factors[i] = scale;
    }
    Engine::put(by, output, factors);
    simt::sync_block();
    store_rows<Engine::kRows, Engine::kThreads>(to, by, rows);
}

}  // namespace tessera::cuda
