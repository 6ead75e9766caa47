// Tile sizes of flash attention, and the buffers of one thread: slices of the workspace that a core keeps in its
// second-level cache for heads of up to 128.
#pragma once

#include <cstdint>

#include "kernels/cpu/flash_attention_tiles.h"
#include "kernels/cpu/support.h"
#include "kernels/cpu/vector.h"

namespace tessera::cpu {

// ---- forward

inline constexpr std::int64_t kPanelVecs = 2;
/// Queries of a panel.
inline constexpr std::int64_t kPanel = kPanelVecs * kLanes;
/// Panels of a task.
inline constexpr std::int64_t kPanels = 128 / kPanel;
/// Keys that are loaded at a time.
inline constexpr std::int64_t kForwardKeys = 96;

struct ForwardBuffers {
    ForwardBuffers(Scratch& scratch, std::int64_t head_dim)
        : queries(scratch.take<float>(kPanels * kPanel * head_dim)),
          output(scratch.take<float>(kPanels * kPanel * padded_head(head_dim))),
          k(scratch.take<float>(kForwardKeys * padded_head(head_dim))),
          v(scratch.take<float>(kForwardKeys * padded_head(head_dim))),
          scores(scratch.take<float>(kForwardKeys * kPanel)),
          largest(scratch.take<float>(kPanels * kPanel)),
          sum(scratch.take<float>(kPanels * kPanel)) {}

    [[nodiscard]] static std::int64_t bytes(std::int64_t head_dim) {
        return workspace_of<float>(kPanels * kPanel * head_dim) +
               workspace_of<float>(kPanels * kPanel * padded_head(head_dim)) +
               2 * workspace_of<float>(kForwardKeys * padded_head(head_dim)) +
               workspace_of<float>(kForwardKeys * kPanel) + 2 * workspace_of<float>(kPanels * kPanel);
    }

    float* queries;  // [panel][head_dim][query]
    float* output;   // [panel][query][padded head]
    float* k;        // [key][padded head]
    float* v;        // [key][padded head]
    float* scores;   // [key][query] of one panel
    float* largest;  // [panel][query]
    float* sum;      // [panel][query]
};

// ---- backward

/// Positions of a tile of queries and of a tile of keys.
inline constexpr std::int64_t kTile = 64;
/// Where a tile is only partly visible, it is treated in squares of this many positions.
inline constexpr std::int64_t kSquare = 16;

struct BackwardBuffers {
    BackwardBuffers(Scratch& scratch, std::int64_t head_dim)
        : k(take_rows(scratch, head_dim)),
          v(take_rows(scratch, head_dim)),
          q(take_rows(scratch, head_dim)),
          dout(take_rows(scratch, head_dim)),
          dq(take_rows(scratch, head_dim)),
          dk(take_rows(scratch, head_dim)),
          dv(take_rows(scratch, head_dim)),
          k_transposed(scratch.take<float>(kTile * head_dim)),
          v_transposed(scratch.take<float>(kTile * head_dim)),
          p(scratch.take<float>(kTile * kTile)),
          ds(scratch.take<float>(kTile * kTile)) {}

    [[nodiscard]] static std::int64_t bytes(std::int64_t head_dim) {
        return 7 * workspace_of<float>(kTile * padded_head(head_dim)) + 2 * workspace_of<float>(kTile * head_dim) +
               2 * workspace_of<float>(kTile * kTile);
    }

    // [position][padded head]
    float* k;
    float* v;
    float* q;
    float* dout;
    float* dq;
    float* dk;
    float* dv;
    // [head_dim][key]
    float* k_transposed;
    float* v_transposed;
    // [query][key]
    float* p;   // scores, then probabilities
    float* ds;  // gradients of probabilities, then of scores

  private:
    static float* take_rows(Scratch& scratch, std::int64_t head_dim) {
        return scratch.take<float>(kTile * padded_head(head_dim));
    }
};

}  // namespace tessera::cpu
