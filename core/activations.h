// The memory of a micro-batch on its way through the model: which buffers there are, and what each is for.
#pragma once

#include <vector>

#include "core/memory.h"
#include "core/model_config.h"
#include "kernels/ops.h"

namespace tessera {

/// Upper bounds of the micro-batches that a model will see, and what it will be asked to do.
struct TransformerLimits {
    std::int64_t tokens = 0;           // of a micro-batch
    std::int64_t longest_segment = 0;  // tokens that attend to each other
    std::int64_t positions = 0;        // largest position + 1
    std::int64_t logits_rows = 0;      // rows of a tile of logits
    bool training = true;              // false: forward only
    bool checkpointing = true;         // keep the input of each block and compute the rest again in backward
};

/// Rows of a tile of logits: `whole` keeps all of a micro-batch's, otherwise at most `bytes` of them (at least one
/// row).
[[nodiscard]] std::int64_t logits_tile_rows(const ModelConfig& config, std::int64_t tokens, bool whole,
                                            std::int64_t bytes);

/// Bounds for Ops::workspace_bytes.
[[nodiscard]] OpsLimits ops_limits(const ModelConfig& config, const TransformerLimits& limits);

/// What one block leaves behind for its backward pass. T rows each; S unless said otherwise.
struct BlockActivations {
    Matrix norm1;      // [T, H] input of q, k, v
    Matrix rstd1;      // [T, 1] A
    Matrix qkv;        // [T, q + 2 kv] after the bias; rope is applied in place (not with q/k norm)
    Matrix qk;         // [T, q + kv] with q/k norm: q and k after norm and rope; qkv keeps them before it
    Matrix rstd_q;     // [T, heads] A, with q/k norm
    Matrix rstd_k;     // [T, kv heads] A, with q/k norm
    Matrix attention;  // [T, q] input of o
    Matrix lse;        // [T, heads] A
    Matrix middle;     // [T, H] residual stream after attention
    Matrix norm2;      // [T, H] input of gate and up
    Matrix rstd2;      // [T, 1] A
    Matrix gate_up;    // [T, 2I]
    Matrix swiglu;     // [T, I] input of down

    BlockActivations(Carver& carver, const ModelConfig& config, const Ops& ops, std::int64_t tokens);
};

/// Gradients on their way back; only where the model is trained.
struct BackwardBuffers {
    Matrix residual;   // [T, H] of the residual stream
    Matrix norm;       // [T, H] of a norm's output
    Matrix qkv;        // [T, q + 2 kv]
    Matrix attention;  // [T, q]
    Matrix gate_up;    // [T, 2I]
    Matrix swiglu;     // [T, I]

    BackwardBuffers(Carver& carver, const ModelConfig& config, const Ops& ops, std::int64_t tokens);
};

/// Final norm and a tile of logits.
struct HeadBuffers {
    Matrix norm;       // [T, H]
    Matrix rstd;       // [T, 1] A
    Matrix rows;       // [tile, H] target rows of norm
    Matrix logits;     // [tile, V] A
    Matrix dlogits;    // [tile, V] S; the memory of logits where S = A
    Matrix log_probs;  // [1, T] A
    Matrix entropy;    // [1, T] A
    Matrix weights;    // [1, T] A

    HeadBuffers(Carver& carver, const ModelConfig& config, const Ops& ops, const TransformerLimits& limits);
};

struct Activations {
    Matrix rope_cos;                        // [positions, D/2] A
    Matrix rope_sin;                        // [positions, D/2] A
    std::vector<Matrix> residual;           // [T, H] input of each block, and of the head; one for all without training
    Matrix delta;                           // [T, H] what the last product adds to the residual stream
    std::vector<BlockActivations> blocks;   // one a block, or one for all
    std::vector<BackwardBuffers> backward;  // none or one
    std::vector<HeadBuffers> head;          // one

    Activations(Carver& carver, const ModelConfig& config, const Ops& ops, const TransformerLimits& limits);

    [[nodiscard]] Matrix& input(std::size_t block) { return residual[residual.size() == 1 ? 0 : block]; }
    [[nodiscard]] BlockActivations& block(std::size_t index) { return blocks[blocks.size() == 1 ? 0 : index]; }
};

/// Bytes by purpose of an Activations with these limits, and of the workspace of the operations.
[[nodiscard]] MemoryPlan plan_activations(const ModelConfig& config, const Ops& ops, const TransformerLimits& limits);

}  // namespace tessera
