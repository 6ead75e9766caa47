// For tests: parameters and gradients of a model in plain vectors, random values, random micro-batches.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "core/batch.h"
#include "core/memory.h"
#include "core/random.h"
#include "core/transformer.h"

namespace tessera::testing {

class ModelMemory : public ParameterSource, public GradientSink {
  public:
    ModelMemory(const ModelConfig& config, DType storage, DType accumulate, std::int64_t seed)
        : units(make_units(config)), storage_(storage), accumulate_(accumulate) {
        for (const Unit& unit : units) {
            values.emplace_back(static_cast<std::size_t>(unit.elements * size_of(storage)));
            gradients.emplace_back(static_cast<std::size_t>(unit.elements * size_of(accumulate)));
            for (const Parameter& parameter : unit.parameters) {
                const NormalStream normal(seed, parameter.name);
                for (std::int64_t i = 0; i < parameter.elements(); ++i) {
                    // As the golden cases: every part of the model must have an effect.
                    const double value = 0.2 * normal(i) + (parameter.init == Parameter::Init::one ? 1 : 0);
                    const double rounded = static_cast<double>(static_cast<float>(value));
                    convert(storage, values.back().data() + (parameter.offset + i) * size_of(storage), DType::f64,
                            &rounded, 1);
                }
            }
        }
    }

    [[nodiscard]] Token acquire(std::int64_t unit, Pass /*pass*/) override {
        ++held;
        return {this, unit, values[static_cast<std::size_t>(unit)].data(), storage_};
    }
    [[nodiscard]] View begin(std::int64_t unit) override {
        return {gradients[static_cast<std::size_t>(unit)].data(), accumulate_};
    }
    void done(std::int64_t unit) override { finished.push_back(unit); }
    void clear() {
        for (auto& gradient : gradients) {
            std::fill(gradient.begin(), gradient.end(), std::byte{0});
        }
        finished.clear();
    }

    /// Element of a vector of `dtype` as double.
    [[nodiscard]] static double get(const std::vector<std::byte>& vector, DType dtype, std::int64_t element) {
        double value = 0;
        convert(DType::f64, &value, dtype, vector.data() + element * size_of(dtype), 1);
        return value;
    }
    [[nodiscard]] double gradient(std::size_t unit, std::int64_t element) const {
        return get(gradients[unit], accumulate_, element);
    }
    void set(std::size_t unit, std::int64_t element, double value) {
        convert(storage_, values[unit].data() + element * size_of(storage_), DType::f64, &value, 1);
    }
    [[nodiscard]] double value(std::size_t unit, std::int64_t element) const {
        return get(values[unit], storage_, element);
    }

    std::vector<Unit> units;
    std::vector<std::vector<std::byte>> values;
    std::vector<std::vector<std::byte>> gradients;
    std::vector<std::int64_t> finished;  // units in the order of done()
    std::int64_t held = 0;               // tokens that are alive

  protected:
    void release(std::int64_t /*unit*/) noexcept override { --held; }

  private:
    DType storage_;
    DType accumulate_;
};

/// An Ops with its workspace, a Transformer with its buffers.
class ModelRun {
  public:
    ModelRun(const ModelConfig& model, std::unique_ptr<Ops> operations, const TransformerLimits& limits,
             const std::vector<Unit>& units)
        : config(model), ops(std::move(operations)) {
        const OpsLimits bounds = ops_limits(config, limits);
        workspace_ = Memory(round_up(ops->workspace_bytes(bounds), kMemoryAlignment) + kMemoryAlignment);
        ops->bind_workspace(workspace_.span(), bounds);
        Carver counter;
        Activations(counter, config, *ops, limits);
        buffers_ = Memory(counter.used());
        Carver carver(buffers_.span());
        transformer = std::make_unique<Transformer>(config, units, *ops, limits, carver);
    }

    ModelConfig config;
    std::unique_ptr<Ops> ops;
    std::unique_ptr<Transformer> transformer;

  private:
    Memory workspace_;
    Memory buffers_;
};

/// Documents of the given lengths, each a segment; every token but the last of each predicts the next.
inline MicroBatch make_batch(const std::vector<std::int64_t>& lengths, std::int64_t vocabulary, unsigned seed) {
    std::mt19937 random(seed);
    MicroBatch batch;
    for (const std::int64_t length : lengths) {
        for (std::int64_t i = 0; i < length; ++i) {
            batch.tokens.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary)));
            batch.positions.push_back(static_cast<std::int32_t>(i));
        }
        const auto start = static_cast<std::int32_t>(batch.starts.back());
        batch.starts.push_back(start + length);
        for (std::int32_t i = 0; i + 1 < length; ++i) {
            batch.target_rows.push_back(start + i);
            batch.target_tokens.push_back(batch.tokens[static_cast<std::size_t>(start + i + 1)]);
            batch.target_weights.push_back(1);
        }
        ++batch.rows;
    }
    return batch;
}

/// A small model of a family with everything that the family can have.
inline ModelConfig small_config(const std::string& family) {
    ModelConfig config;
    config.family = family;
    config.vocab_size = 29;
    config.hidden_size = 12;
    config.intermediate_size = 20;
    config.num_layers = 2;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 6;
    config.max_position_embeddings = 64;
    config.rms_norm_eps = 1e-5;
    config.qkv_bias = family == "qwen2" || family == "biases";
    config.o_bias = family == "biases";
    config.mlp_bias = family == "biases";
    config.qk_norm = family == "qwen3";
    config.tied = family == "qwen2";
    config.window = {0, family == "mistral" ? 3 : 0};
    return config;
}

}  // namespace tessera::testing
