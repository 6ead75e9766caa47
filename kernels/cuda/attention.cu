#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_launches.h"
#include "kernels/cuda/attention_sizes.h"

namespace tessera::cuda {

AttentionTileRows attention_tile_rows(DType storage, std::int64_t head_dim) {
    AttentionTileRows rows;
    with_attention_size(storage, head_dim, [&]<typename S, int D>(S, std::integral_constant<int, D>) {
        using Sizes = AttentionSizes<S, D>;
        static_assert(Sizes::BackwardQueries::kRows == Sizes::BackwardKeys::kRows);
        rows = {Sizes::Forward::kRows, Sizes::BackwardKeys::kRows};
    });
    return rows;
}

std::vector<AttentionTile> attention_tiles(std::span<const std::int64_t> starts, std::int64_t rows) {
    // Kernels count within a segment in int, and a tile beyond its end.
    constexpr std::int64_t kLongest = std::int64_t{1} << 30;
    std::vector<AttentionTile> tiles;
    for (std::size_t s = 1; s < starts.size(); ++s) {
        const std::int64_t begin = starts[s - 1];
        const std::int64_t end = starts[s];
        if (end - begin > kLongest) {
            fail(ExitCode::internal, "attention over a segment of {} tokens; the device takes {} at most", end - begin,
                 kLongest);
        }
        for (std::int64_t first = begin; first < end; first += rows) {
            tiles.push_back({.first = first, .begin = begin, .end = end});
        }
    }
    return tiles;
}

void attention_forward(simt::Stream stream, Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                       const AttentionShape& shape, std::span<const AttentionTile> tiles) {
    const ForwardCall call{.out = out, .lse = lse, .q = q, .k = k, .v = v, .shape = shape, .tiles = tiles};
    with_attention_size(q.dtype, shape.head_dim, [&]<typename S, int D>(S, std::integral_constant<int, D>) {
        if (!tiles.empty()) {
            launch_attention_forward<S, D>(stream, call);
        }
    });
}

void attention_backward(simt::Stream stream, Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q,
                        ConstMatrix k, ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape,
                        std::span<const AttentionTile> tiles, std::span<std::byte> workspace) {
    const std::int64_t needed = attention_workspace_bytes(q.rows, shape.heads);
    if (static_cast<std::int64_t>(workspace.size()) < needed) {
        fail(ExitCode::internal, "the backward pass of attention needs {} bytes of workspace and was given {}", needed,
             workspace.size());
    }
    auto* lse2 = reinterpret_cast<float*>(workspace.data());
    const BackwardCall call{.dq = dq,
                            .dk = dk,
                            .dv = dv,
                            .dout = dout,
                            .q = q,
                            .k = k,
                            .v = v,
                            .out = out,
                            .lse = lse,
                            .shape = shape,
                            .tiles = tiles,
                            .statistics = {.lse2 = lse2, .mean = lse2 + q.rows * shape.heads, .tokens = q.rows}};
    with_attention_size(q.dtype, shape.head_dim, [&]<typename S, int D>(S, std::integral_constant<int, D>) {
        if (!tiles.empty()) {
            launch_attention_statistics<S>(stream, call);
            launch_attention_backward_queries<S, D>(stream, call);
            launch_attention_backward_keys<S, D>(stream, call);
        }
    });
}

}  // namespace tessera::cuda
