// Models and batches by chance: the fused CPU kernels in f32 and bf16 against the composed reference in double.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "core/transformer.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "test/core/model_memory.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

class Chance {
  public:
    explicit Chance(unsigned seed) : random_(seed) {}
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }
    bool often() { return between(0, 2) > 0; }

    ModelConfig config() {
        ModelConfig config;
        config.family = "chance";
        config.vocab_size = between(2, 150);
        config.hidden_size = between(1, 40);
        config.intermediate_size = between(1, 60);
        config.num_layers = between(1, 3);
        config.num_kv_heads = between(1, 3);
        config.num_heads = config.num_kv_heads * between(1, 4);
        config.head_dim = 2 * between(1, 20);
        config.max_position_embeddings = 256;
        config.rms_norm_eps = 1e-5;
        config.qkv_bias = often();
        config.o_bias = often();
        config.mlp_bias = often();
        config.qk_norm = often();
        config.tied = often();
        for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
            config.window.push_back(often() ? 0 : between(1, 70));
        }
        return config;
    }
    MicroBatch batch(std::int64_t vocabulary) {
        std::vector<std::int64_t> lengths;
        for (std::int64_t segments = between(1, 4); segments > 0; --segments) {
            lengths.push_back(between(1, often() ? 20 : 140));
        }
        MicroBatch batch = make_batch(lengths, vocabulary, static_cast<unsigned>(between(0, 1 << 30)));
        for (float& weight : batch.target_weights) {
            weight = often() ? 1.0F : static_cast<float>(between(-2, 2)) * 0.5F;
        }
        return batch;
    }

  private:
    std::mt19937 random_;
};

struct Result {
    double loss;
    std::vector<double> log_probs;
    std::vector<std::vector<double>> gradients;
};

Result compute(const ModelConfig& config, const MicroBatch& batch, std::unique_ptr<Ops> ops, bool checkpointing) {
    const TransformerLimits limits{.tokens = batch.token_count(),
                                   .longest_segment = batch.longest_segment(),
                                   .positions = batch.longest_segment(),
                                   .logits_rows = std::min<std::int64_t>(batch.token_count(), 48),
                                   .training = true,
                                   .checkpointing = checkpointing};
    ModelMemory memory(config, ops->storage(), ops->accumulate(), 7);
    ModelRun run(config, std::move(ops), limits, memory.units);
    memory.clear();
    Result result;
    result.loss = run.transformer->forward_backward(batch, 0.01, memory, memory);
    for (std::size_t u = 0; u < memory.units.size(); ++u) {
        auto& values = result.gradients.emplace_back();
        for (std::int64_t i = 0; i < memory.units[u].elements; ++i) {
            values.push_back(memory.gradient(u, i));
        }
    }
    result.log_probs.resize(batch.target_rows.size());
    run.transformer->score(batch, 1.0, memory, result.log_probs, {});
    return result;
}

double largest(const std::vector<double>& values) {
    double most = 0;
    for (const double value : values) {
        most = std::max(most, std::abs(value));
    }
    return most;
}

/// Largest difference of two gradients of a unit, relative to the largest entry; and of two lists of log-probs.
std::pair<double, double> distance(const Result& a, const Result& b) {
    double gradients = 0;
    for (std::size_t u = 0; u < a.gradients.size(); ++u) {
        const double scale = largest(b.gradients[u]);
        for (std::size_t i = 0; i < a.gradients[u].size(); ++i) {
            const double difference = std::abs(a.gradients[u][i] - b.gradients[u][i]);
            REQUIRE(std::isfinite(difference));
            gradients = std::max(gradients, scale > 0 ? difference / scale : difference);
        }
    }
    double log_probs = 0;
    for (std::size_t i = 0; i < a.log_probs.size(); ++i) {
        log_probs = std::max(log_probs, std::abs(a.log_probs[i] - b.log_probs[i]));
    }
    return {gradients, log_probs};
}

}  // namespace

TEST_CASE("models by chance: the fused kernels in f32 agree with the reference in double") {
    for (unsigned seed = 1; seed <= 60; ++seed) {
        Chance chance(seed);
        const ModelConfig config = chance.config();
        const MicroBatch batch = chance.batch(config.vocab_size);
        CAPTURE(seed, config.hidden_size, config.head_dim, config.num_heads, batch.token_count());
        const bool checkpointing = chance.often();
        const Result exact = compute(config, batch, make_reference_ops(DType::f64), false);
        const Result fused = compute(config, batch, make_cpu_ops({.storage = DType::f32}), checkpointing);
        const Result composed = compute(config, batch, make_reference_ops(DType::f32), false);
        const auto [fused_gradients, fused_log_probs] = distance(fused, exact);
        const auto [composed_gradients, composed_log_probs] = distance(composed, exact);
        // As far from the truth as the plain composition in the same precision, whose own distance has some luck in it:
        // the floors are a few hundred roundings of 2^-24, what a sum over 140 tokens and three layers may take.
        CHECK(fused_gradients <= 4 * composed_gradients + 2e-5);
        CHECK(fused_log_probs <= 4 * composed_log_probs + 2e-5);
    }
}

TEST_CASE("models by chance: the fused kernels in bf16 are no further from the truth than the composition in bf16") {
    for (unsigned seed = 101; seed <= 130; ++seed) {
        Chance chance(seed);
        const ModelConfig config = chance.config();
        const MicroBatch batch = chance.batch(config.vocab_size);
        CAPTURE(seed, config.hidden_size, config.head_dim, config.num_heads, batch.token_count());
        const Result exact = compute(config, batch, make_reference_ops(DType::f64), false);
        const Result fused = compute(config, batch, make_cpu_ops({.storage = DType::bf16}), chance.often());
        const Result composed = compute(config, batch, make_reference_ops(DType::bf16), false);
        const auto [fused_gradients, fused_log_probs] = distance(fused, exact);
        const auto [composed_gradients, composed_log_probs] = distance(composed, exact);
        // Both round weights and activations to 2^-9 alike; the floor is a few such roundings of a log-prob of order 5.
        CHECK(fused_gradients <= 2 * composed_gradients + 0.03);
        CHECK(fused_log_probs <= 2 * composed_log_probs + 0.05);
    }
}
