#include "core/activations.h"

#include <algorithm>

namespace tessera {

std::int64_t logits_tile_rows(const ModelConfig& config, std::int64_t tokens, bool whole, std::int64_t bytes) {
    if (whole) {
        return tokens;
    }
    // A tile that stays near the caches is also the fastest; more rows than these gain nothing in a product.
    constexpr std::int64_t kEnoughRows = 256;
    const std::int64_t fitting = bytes / (config.vocab_size * size_of(DType::f32));
    return std::min(tokens, std::clamp<std::int64_t>(fitting, 1, kEnoughRows));
}

OpsLimits ops_limits(const ModelConfig& config, const TransformerLimits& limits) {
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t widest = std::max({hidden, config.qkv_size(), 2 * config.intermediate_size});
    return {.tokens = limits.tokens,
            .columns = widest,
            .weight_elements =
                std::max(widest, config.vocab_size) * std::max({hidden, config.q_size(), config.intermediate_size}),
            .logits_rows = limits.logits_rows,
            .vocabulary = config.vocab_size,
            .heads = config.num_heads,
            .kv_heads = config.num_kv_heads,
            .head_dim = config.head_dim,
            .longest_segment = limits.longest_segment};
}

BlockActivations::BlockActivations(Carver& carver, const ModelConfig& config, const Ops& ops, std::int64_t tokens) {
    const auto storage = [&](std::int64_t cols) { return carver.matrix(ops.storage(), tokens, cols); };
    const auto statistic = [&](std::int64_t cols) { return carver.matrix(ops.accumulate(), tokens, cols); };
    norm1 = storage(config.hidden_size);
    rstd1 = statistic(1);
    qkv = storage(config.qkv_size());
    if (config.qk_norm) {
        qk = storage(config.q_size() + config.kv_size());
        rstd_q = statistic(config.num_heads);
        rstd_k = statistic(config.num_kv_heads);
    }
    attention = storage(config.q_size());
    lse = statistic(config.num_heads);
    middle = storage(config.hidden_size);
    norm2 = storage(config.hidden_size);
    rstd2 = statistic(1);
    gate_up = storage(2 * config.intermediate_size);
    swiglu = storage(config.intermediate_size);
}

BackwardBuffers::BackwardBuffers(Carver& carver, const ModelConfig& config, const Ops& ops, std::int64_t tokens) {
    const auto storage = [&](std::int64_t cols) { return carver.matrix(ops.storage(), tokens, cols); };
    residual = storage(config.hidden_size);
    norm = storage(config.hidden_size);
    qkv = storage(config.qkv_size());
    attention = storage(config.q_size());
    gate_up = storage(2 * config.intermediate_size);
    swiglu = storage(config.intermediate_size);
}

HeadBuffers::HeadBuffers(Carver& carver, const ModelConfig& config, const Ops& ops, const TransformerLimits& limits) {
    const std::int64_t tile = limits.logits_rows;
    norm = carver.matrix(ops.storage(), limits.tokens, config.hidden_size);
    rstd = carver.matrix(ops.accumulate(), limits.tokens, 1);
    rows = carver.matrix(ops.storage(), tile, config.hidden_size);
    logits = carver.matrix(ops.accumulate(), tile, config.vocab_size);
    log_probs = carver.matrix(ops.accumulate(), 1, limits.tokens);
    entropy = carver.matrix(ops.accumulate(), 1, limits.tokens);
    weights = carver.matrix(ops.accumulate(), 1, limits.tokens);
    if (limits.training) {
        dlogits = ops.storage() == ops.accumulate() ? logits : carver.matrix(ops.storage(), tile, config.vocab_size);
    }
}

Activations::Activations(Carver& carver, const ModelConfig& config, const Ops& ops, const TransformerLimits& limits) {
    rope_cos = carver.matrix(ops.accumulate(), limits.positions, config.head_dim / 2);
    rope_sin = carver.matrix(ops.accumulate(), limits.positions, config.head_dim / 2);
    const std::int64_t inputs = limits.training ? config.num_layers + 1 : 1;
    for (std::int64_t i = 0; i < inputs; ++i) {
        residual.push_back(carver.matrix(ops.storage(), limits.tokens, config.hidden_size));
    }
    delta = carver.matrix(ops.storage(), limits.tokens, config.hidden_size);
    const std::int64_t kept = limits.training && !limits.checkpointing ? config.num_layers : 1;
    for (std::int64_t i = 0; i < kept; ++i) {
        blocks.emplace_back(carver, config, ops, limits.tokens);
    }
    if (limits.training) {
        backward.emplace_back(carver, config, ops, limits.tokens);
    }
    head.emplace_back(carver, config, ops, limits);
}

MemoryPlan plan_activations(const ModelConfig& config, const Ops& ops, const TransformerLimits& limits) {
    Carver head;
    HeadBuffers(head, config, ops, limits);
    Carver all;
    Activations(all, config, ops, limits);
    return {{"activations", all.used() - head.used()},
            {"logits tile", head.used()},
            {"workspace", ops.workspace_bytes(ops_limits(config, limits))}};
}

}  // namespace tessera
