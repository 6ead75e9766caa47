// One decoder block: x += o(attention(norm(x))); x += down(swiglu(gate_up(norm(x)))).
#pragma once

#include "core/activations.h"
#include "core/batch.h"
#include "core/unit_memory.h"

namespace tessera {

class Block {
  public:
    Block(const ModelConfig& config, const Unit& unit, std::int64_t layer, Ops& ops);

    /// What a micro-batch brings to every block.
    struct Tokens {
        std::int64_t count;
        std::span<const std::int32_t> positions;
        std::span<const std::int64_t> starts;
        RopeTable rope;
    };

    /// The residual stream enters as x + delta (delta empty: x alone); the sum is kept in `input`. Leaves the block's
    /// own sum as `activations.middle` + `delta_out`.
    /// With `again` the pass is the second of gradient checkpointing: `input` is there, `delta_out` is not needed.
    void forward(const ParameterSource::Token& parameters, const Tokens& tokens, ConstMatrix x, ConstMatrix delta,
                 Matrix input, BlockActivations& activations, Matrix delta_out, bool again) const;

    /// `buffers.residual` enters as the gradient of the block's output and leaves as that of its input.
    void backward(const ParameterSource::Token& parameters, const GradientSink::View& gradients, const Tokens& tokens,
                  ConstMatrix input, const BlockActivations& activations, const BackwardBuffers& buffers) const;

  private:
    [[nodiscard]] AttentionShape attention_shape(const Tokens& tokens) const;
    void backward_mlp(const ParameterSource::Token& parameters, const GradientSink::View& gradients, std::int64_t count,
                      const BlockActivations& activations, const BackwardBuffers& buffers) const;
    void backward_attention(const ParameterSource::Token& parameters, const GradientSink::View& gradients,
                            const Tokens& tokens, ConstMatrix input, const BlockActivations& activations,
                            const BackwardBuffers& buffers) const;

    const ModelConfig& config_;
    Ops& ops_;
    std::int64_t window_;
    // Groups of parameters by the first of each; null where the family has none.
    const Parameter* qkv_;
    const Parameter* o_;
    const Parameter* gate_up_;
    const Parameter* down_;
    const Parameter* norm1_;
    const Parameter* norm2_;
    const Parameter* qkv_bias_ = nullptr;
    const Parameter* o_bias_ = nullptr;
    const Parameter* gate_up_bias_ = nullptr;
    const Parameter* down_bias_ = nullptr;
    const Parameter* q_norm_ = nullptr;
    const Parameter* k_norm_ = nullptr;
};

}  // namespace tessera
