// Causal attention over packed segments on the device: flash attention (Dao 2023, "FlashAttention-2"), which keeps no
// matrix of scores. Meaning, shapes and dtypes are those of Ops::attention_forward and Ops::attention_backward, with S
// in {f32, bf16, f16} and A = f32; all matrices lie in device memory, every one of q, k, v and their like may be a
// column range of a larger matrix. Products of 16-bit inputs run on tensor cores; those of f32 are plain sums.
//
// The work is cut into tiles of rows, which the host lists once for all layers of a micro-batch. No function allocates
// or synchronises; there are no atomics, and the same call gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/view.h"
#include "kernels/cuda/runtime.h"
#include "kernels/ops.h"

namespace tessera::cuda {

inline constexpr std::int64_t kLargestAttentionHead = 256;

/// Rows [first, min(first + rows of a tile, end)) of the segment [begin, end); all count tokens of the micro-batch.
struct AttentionTile {
    std::int64_t first = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
};

/// Rows of a tile in each pass, for a storage dtype and a head size of at most kLargestAttentionHead. Both depend on
/// nothing else. Throws Error(internal) for a dtype or a head size that there is no kernel for.
struct AttentionTileRows {
    std::int64_t forward = 0;
    std::int64_t backward = 0;
};
[[nodiscard]] AttentionTileRows attention_tile_rows(DType storage, std::int64_t head_dim);

/// The tiles of `rows` rows of segments as AttentionShape::starts gives them, in ascending order; none for an empty
/// segment. A segment of more than 2^30 tokens throws Error(internal).
[[nodiscard]] std::vector<AttentionTile> attention_tiles(std::span<const std::int64_t> starts, std::int64_t rows);

/// Upper bound of the number of tiles of `tokens` tokens in at most `segments` segments that are not empty.
[[nodiscard]] constexpr std::int64_t most_attention_tiles(std::int64_t tokens, std::int64_t segments,
                                                          std::int64_t rows) {
    return tokens / rows + segments;
}

/// `tiles`: a copy in device memory of attention_tiles(starts, attention_tile_rows(S, D).forward); shape.starts is not
/// read. Throws Error(internal) as attention_tile_rows does.
void attention_forward(simt::Stream stream, Matrix out, Matrix lse, ConstMatrix q, ConstMatrix k, ConstMatrix v,
                       const AttentionShape& shape, std::span<const AttentionTile> tiles);

/// Bytes of workspace of attention_backward.
[[nodiscard]] constexpr std::int64_t attention_workspace_bytes(std::int64_t tokens, std::int64_t heads) {
    return 2 * tokens * heads * static_cast<std::int64_t>(sizeof(float));
}

/// `tiles`: a copy in device memory of attention_tiles(starts, attention_tile_rows(S, D).backward); shape.starts is not
/// read. `workspace`: device memory, 4-byte aligned, overwritten; too little of it throws Error(internal). dq, dk, dv
/// may not overlap what is read.
void attention_backward(simt::Stream stream, Matrix dq, Matrix dk, Matrix dv, ConstMatrix dout, ConstMatrix q,
                        ConstMatrix k, ConstMatrix v, ConstMatrix out, ConstMatrix lse, const AttentionShape& shape,
                        std::span<const AttentionTile> tiles, std::span<std::byte> workspace);

}  // namespace tessera::cuda
