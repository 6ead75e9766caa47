// What launches the kernels of attention. The templates are instantiated for the storage dtypes S and head sizes D of
// with_attention_size, in files of their own, so that no file takes long to compile.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/view.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/simt.h"

namespace tessera::cuda {

/// Arguments of attention_forward.
struct ForwardCall {
    Matrix out;
    Matrix lse;
    ConstMatrix q;
    ConstMatrix k;
    ConstMatrix v;
    const AttentionShape& shape;
    std::span<const AttentionTile> tiles;
};

/// Of each query and head, [heads, T]: its log-sum-exp to base 2, and D.
struct QueryStatistics {
    float* lse2;
    float* mean;
    std::int64_t tokens;

    SIMT_DEVICE QueryStatistics at(std::int64_t token, std::int64_t head) const {
        return {lse2 + head * tokens + token, mean + head * tokens + token, tokens};
    }
};

/// Arguments of attention_backward.
struct BackwardCall {
    Matrix dq;
    Matrix dk;
    Matrix dv;
    ConstMatrix dout;
    ConstMatrix q;
    ConstMatrix k;
    ConstMatrix v;
    ConstMatrix out;
    ConstMatrix lse;
    const AttentionShape& shape;
    std::span<const AttentionTile> tiles;
    QueryStatistics statistics;
};

template <typename S, int D>
void launch_attention_forward(simt::Stream stream, const ForwardCall& call);
/// Fills call.statistics, which the other two of the backward pass read.
template <typename S>
void launch_attention_statistics(simt::Stream stream, const BackwardCall& call);
template <typename S, int D>
void launch_attention_backward_queries(simt::Stream stream, const BackwardCall& call);
template <typename S, int D>
void launch_attention_backward_keys(simt::Stream stream, const BackwardCall& call);

}  // namespace tessera::cuda
