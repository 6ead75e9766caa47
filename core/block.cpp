#include "core/block.h"

#include <cmath>

namespace tessera {
namespace {

/// The bias of a product, or an empty view where the family has none.
ConstMatrix bias_view(const ParameterSource::Token& parameters, const Parameter* bias, std::int64_t count) {
    return bias == nullptr ? ConstMatrix{} : parameters.view(*bias, 1, count);
}

}  // namespace

Block::Block(const ModelConfig& config, const Unit& unit, std::int64_t layer, Ops& ops)
    : config_(config),
      ops_(ops),
      window_(config.window[static_cast<std::size_t>(layer)]),
      qkv_(&unit.parameter("q_proj.weight")),
      o_(&unit.parameter("o_proj.weight")),
      gate_up_(&unit.parameter("gate_proj.weight")),
      down_(&unit.parameter("down_proj.weight")),
      norm1_(&unit.parameter("input_layernorm.weight")),
      norm2_(&unit.parameter("post_attention_layernorm.weight")) {
    if (config.qkv_bias) {
        qkv_bias_ = &unit.parameter("q_proj.bias");
    }
    if (config.o_bias) {
        o_bias_ = &unit.parameter("o_proj.bias");
    }
    if (config.mlp_bias) {
        gate_up_bias_ = &unit.parameter("gate_proj.bias");
        down_bias_ = &unit.parameter("down_proj.bias");
    }
    if (config.qk_norm) {
        q_norm_ = &unit.parameter("q_norm.weight");
        k_norm_ = &unit.parameter("k_norm.weight");
    }
}

AttentionShape Block::attention_shape(const Tokens& tokens) const {
    return {.heads = config_.num_heads,
            .kv_heads = config_.num_kv_heads,
            .head_dim = config_.head_dim,
            .window = window_,
            .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)),
            .starts = tokens.starts};
}

void Block::forward(const ParameterSource::Token& parameters, const Tokens& tokens, ConstMatrix x, ConstMatrix delta,
                    Matrix input, BlockActivations& activations, Matrix delta_out, bool again) const {
    const std::int64_t count = tokens.count;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inter = config_.intermediate_size;
    const std::int64_t q_size = config_.q_size();
    const std::int64_t kv_size = config_.kv_size();
    const auto rows = [count](const Matrix& buffer) { return buffer.row_range(0, count); };
    const Matrix norm1 = rows(activations.norm1);
    ops_.add_rmsnorm_forward(norm1, rows(activations.rstd1), input, x, delta, parameters.view(*norm1_),
                             config_.rms_norm_eps);

    const Matrix qkv = rows(activations.qkv);
    ops_.linear_forward(qkv, norm1, parameters.view(*qkv_, config_.qkv_size(), hidden),
                        bias_view(parameters, qkv_bias_, config_.qkv_size()));
    Matrix qk = qkv.col_range(0, q_size + kv_size);
    if (config_.qk_norm) {
        qk = rows(activations.qk);
        ops_.add_rmsnorm_forward(qk.col_range(0, q_size), rows(activations.rstd_q), {}, qkv.col_range(0, q_size), {},
                                 parameters.view(*q_norm_), config_.rms_norm_eps);
        ops_.add_rmsnorm_forward(qk.col_range(q_size, kv_size), rows(activations.rstd_k), {},
                                 qkv.col_range(q_size, kv_size), {}, parameters.view(*k_norm_), config_.rms_norm_eps);
    }
    ops_.rope(qk, tokens.rope, tokens.positions, config_.head_dim, false);
    const Matrix attention = rows(activations.attention);
    ops_.attention_forward(attention, rows(activations.lse), qk.col_range(0, q_size), qk.col_range(q_size, kv_size),
                           qkv.col_range(q_size + kv_size, kv_size), attention_shape(tokens));

    const Matrix branch = rows(delta_out);
    ops_.linear_forward(branch, attention, parameters.view(*o_), bias_view(parameters, o_bias_, hidden));
    const Matrix norm2 = rows(activations.norm2);
    ops_.add_rmsnorm_forward(norm2, rows(activations.rstd2), rows(activations.middle), input, branch,
                             parameters.view(*norm2_), config_.rms_norm_eps);
    const Matrix gate_up = rows(activations.gate_up);
    ops_.linear_forward(gate_up, norm2, parameters.view(*gate_up_, 2 * inter, hidden),
                        bias_view(parameters, gate_up_bias_, 2 * inter));
    ops_.swiglu_forward(rows(activations.swiglu), gate_up);
    if (!again) {
        ops_.linear_forward(branch, rows(activations.swiglu), parameters.view(*down_),
                            bias_view(parameters, down_bias_, hidden));
    }
}

void Block::backward(const ParameterSource::Token& parameters, const GradientSink::View& gradients,
                     const Tokens& tokens, ConstMatrix input, const BlockActivations& activations,
                     const BackwardBuffers& buffers) const {
    backward_mlp(parameters, gradients, tokens.count, activations, buffers);
    backward_attention(parameters, gradients, tokens, input, activations, buffers);
}

void Block::backward_mlp(const ParameterSource::Token& parameters, const GradientSink::View& gradients,
                         std::int64_t count, const BlockActivations& activations,
                         const BackwardBuffers& buffers) const {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inter = config_.intermediate_size;
    const auto rows = [count](const Matrix& buffer) { return buffer.row_range(0, count); };
    const Matrix residual = rows(buffers.residual);
    const Matrix dswiglu = rows(buffers.swiglu);
    ops_.linear_backward_input(dswiglu, residual, parameters.view(*down_));
    ops_.linear_backward_weight(gradients.view(*down_), residual, rows(activations.swiglu));
    const Matrix dgate_up = rows(buffers.gate_up);
    ops_.swiglu_backward(dgate_up, dswiglu, rows(activations.gate_up));
    const Matrix dnorm = rows(buffers.norm);
    ops_.linear_backward_input(dnorm, dgate_up, parameters.view(*gate_up_, 2 * inter, hidden));
    ops_.linear_backward_weight(gradients.view(*gate_up_, 2 * inter, hidden), dgate_up, rows(activations.norm2));
    if (config_.mlp_bias) {
        ops_.bias_backward(gradients.view(*down_bias_), residual);
        ops_.bias_backward(gradients.view(*gate_up_bias_, 1, 2 * inter), dgate_up);
    }
    ops_.rmsnorm_backward(residual, gradients.view(*norm2_), residual, dnorm, rows(activations.middle),
                          rows(activations.rstd2), parameters.view(*norm2_));
}

void Block::backward_attention(const ParameterSource::Token& parameters, const GradientSink::View& gradients,
                               const Tokens& tokens, ConstMatrix input, const BlockActivations& activations,
                               const BackwardBuffers& buffers) const {
    const std::int64_t count = tokens.count;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t q_size = config_.q_size();
    const std::int64_t kv_size = config_.kv_size();
    const auto rows = [count](const Matrix& buffer) { return buffer.row_range(0, count); };
    const Matrix residual = rows(buffers.residual);
    const Matrix attention = rows(activations.attention);
    const Matrix dattention = rows(buffers.attention);
    ops_.linear_backward_input(dattention, residual, parameters.view(*o_));
    ops_.linear_backward_weight(gradients.view(*o_), residual, attention);
    if (config_.o_bias) {
        ops_.bias_backward(gradients.view(*o_bias_), residual);
    }

    const Matrix qkv = rows(activations.qkv);
    const Matrix qk = config_.qk_norm ? rows(activations.qk) : qkv.col_range(0, q_size + kv_size);
    const Matrix dqkv = rows(buffers.qkv);
    const Matrix dq = dqkv.col_range(0, q_size);
    const Matrix dk = dqkv.col_range(q_size, kv_size);
    ops_.attention_backward(dq, dk, dqkv.col_range(q_size + kv_size, kv_size), dattention, qk.col_range(0, q_size),
                            qk.col_range(q_size, kv_size), qkv.col_range(q_size + kv_size, kv_size), attention,
                            rows(activations.lse), attention_shape(tokens));
    ops_.rope(dqkv.col_range(0, q_size + kv_size), tokens.rope, tokens.positions, config_.head_dim, true);
    if (config_.qk_norm) {
        ops_.rmsnorm_backward(dq, gradients.view(*q_norm_), {}, dq, qkv.col_range(0, q_size), rows(activations.rstd_q),
                              parameters.view(*q_norm_));
        ops_.rmsnorm_backward(dk, gradients.view(*k_norm_), {}, dk, qkv.col_range(q_size, kv_size),
                              rows(activations.rstd_k), parameters.view(*k_norm_));
    }
    const Matrix dnorm = rows(buffers.norm);
    const std::int64_t qkv_size = config_.qkv_size();
    ops_.linear_backward_input(dnorm, dqkv, parameters.view(*qkv_, qkv_size, hidden));
    ops_.linear_backward_weight(gradients.view(*qkv_, qkv_size, hidden), dqkv, rows(activations.norm1));
    if (config_.qkv_bias) {
        ops_.bias_backward(gradients.view(*qkv_bias_, 1, qkv_size), dqkv);
    }
    ops_.rmsnorm_backward(residual, gradients.view(*norm1_), residual, dnorm, input, rows(activations.rstd1),
                          parameters.view(*norm1_));
}

}  // namespace tessera
