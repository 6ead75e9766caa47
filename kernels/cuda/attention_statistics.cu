// The first kernel of the backward pass: what it needs of each query and head.
#include <cstdint>

#include "kernels/cuda/attention_backward.h"

namespace tessera::cuda {

/// Sixteen lanes have a query of one head.
template <typename S>
struct AttentionStatistics {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 0;
    static constexpr int kLanes = 16;
    static constexpr int kPairs = kThreads / kLanes;  // of queries and heads, in a block

    HeadRows<const S> dout;
    HeadRows<const S> out;
    const float* lse;
    std::int64_t lse_stride;
    QueryStatistics statistics;
    std::int64_t heads;

    SIMT_DEVICE void operator()() const {
        const std::int64_t pair = simt::block_x() * kPairs + simt::thread() / kLanes;
        const std::int64_t token = pair / heads;
        const std::int64_t head = pair % heads;
        const int lane = simt::thread() % kLanes;
        const bool inside = token < statistics.tokens;
        const HeadRows<const S> a = dout.at(token, head);
        const HeadRows<const S> b = out.at(token, head);
        float sum = 0;
        if (inside && a.aligned && b.aligned) {
            for (int column = lane * kChunk<S>; column < a.columns; column += kLanes * kChunk<S>) {
                const auto left = simt::load_vector<kChunk<S>>(a.data + column);
                const auto right = simt::load_vector<kChunk<S>>(b.data + column);
                SIMT_UNROLL
                for (int e = 0; e < kChunk<S>; ++e) {
                    sum += simt::to_float(left.v[e]) * simt::to_float(right.v[e]);
                }
            }
        } else if (inside) {
            for (int column = lane; column < a.columns; column += kLanes) {
                sum += simt::to_float(a.data[column]) * simt::to_float(b.data[column]);
            }
        }
        SIMT_UNROLL
        for (int bits = 1; bits < kLanes; bits *= 2) {
            sum += simt::shuffle_xor(sum, bits);
        }
        if (inside && lane == 0) {
            const QueryStatistics own = statistics.at(token, head);
            *own.mean = sum;
            *own.lse2 = lse[token * lse_stride + head] * static_cast<float>(kLog2E);
        }
    }
};

template <typename S>
void launch_attention_statistics(simt::Stream stream, const BackwardCall& call) {
    using Kernel = AttentionStatistics<S>;
    const AttentionShape& shape = call.shape;
    const Kernel kernel{.dout = head_rows<const S>(call.dout, shape.head_dim),
                        .out = head_rows<const S>(call.out, shape.head_dim),
                        .lse = call.lse.as<float>(),
                        .lse_stride = call.lse.stride,
                        .statistics = call.statistics,
                        .heads = shape.heads};
    const std::int64_t pairs = call.statistics.tokens * shape.heads;
    simt::launch(stream, {.x = (pairs + Kernel::kPairs - 1) / Kernel::kPairs}, kernel);
}

template void launch_attention_statistics<bfloat16>(simt::Stream, const BackwardCall&);
template void launch_attention_statistics<float16>(simt::Stream, const BackwardCall&);
template void launch_attention_statistics<float>(simt::Stream, const BackwardCall&);

}  // namespace tessera::cuda
