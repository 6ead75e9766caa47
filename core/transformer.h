// A decoder model: runs micro-batches forward and backward over units that others keep.
#pragma once

#include <span>
#include <vector>

#include "core/activations.h"
#include "core/batch.h"
#include "core/block.h"
#include "core/unit_memory.h"

namespace tessera {

class Transformer {
  public:
    /// Takes its buffers from `carver` (as many bytes as plan_activations says, less the workspace). `config`, `units`
    /// and `ops` must outlive it.
    Transformer(const ModelConfig& config, const std::vector<Unit>& units, Ops& ops, const TransformerLimits& limits,
                Carver& carver);

    /// What a micro-batch acquires from its source and begins in its sink, in which order: forward alone, or with
    /// backward.
    [[nodiscard]] static UnitUses uses(const ModelConfig& config, Pass last);

    /// Sum over the targets of -weight * log p(target), in nats. Adds scale * its gradient to what `sink` gives.
    [[nodiscard]] double forward_backward(const MicroBatch& batch, double scale, ParameterSource& source,
                                          GradientSink& sink);

    /// The same sum without gradients.
    [[nodiscard]] double loss(const MicroBatch& batch, ParameterSource& source);

    /// log p of each target, of logits divided by `temperature`, and the entropy of the same distributions; entropy may
    /// be empty. [R] each.
    void score(const MicroBatch& batch, double temperature, ParameterSource& source, std::span<double> log_probs,
               std::span<double> entropy);

  private:
    [[nodiscard]] Block::Tokens describe(const MicroBatch& batch) const;
    void check(const MicroBatch& batch) const;
    /// Runs embedding and blocks and the final norm; leaves the norm's output in the head's buffer.
    void forward(const MicroBatch& batch, ParameterSource& source);
    /// Logits of target rows [first, first + count) in the head's tile.
    [[nodiscard]] Matrix tile_logits(const MicroBatch& batch, std::int64_t first, std::int64_t count,
                                     ConstMatrix weight);
    void head_backward(const MicroBatch& batch, double scale, ParameterSource& source, GradientSink& sink);
    void blocks_backward(const MicroBatch& batch, ParameterSource& source, GradientSink& sink);

    [[nodiscard]] std::int64_t head_unit() const { return config_.num_layers + 1; }
    /// Where the head's weight is kept: in the embedding's unit if it is tied.
    [[nodiscard]] std::int64_t logits_unit() const { return config_.tied ? 0 : head_unit(); }

    const ModelConfig& config_;
    Ops& ops_;
    TransformerLimits limits_;
    Activations activations_;
    std::vector<Block> blocks_;
    const Parameter* embedding_;
    const Parameter* final_norm_;
    const Parameter* logits_weight_;
};

}  // namespace tessera
