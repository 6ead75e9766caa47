// For tests: the weights that an engine begins with, and its steps of training.
#pragma once

#include <vector>

#include "test/zero/engine.h"

namespace tessera::testing {

/// The same weights at every stage and number of ranks: each element's value depends on its name and index alone.
inline void load_initial_weights(ModelStates& states, Ops& ops) {
    states.load(
        [](const Parameter& parameter, std::int64_t first, std::int64_t count, DType dtype, void* to) {
            const NormalStream normal(5, parameter.name);
            for (std::int64_t i = 0; i < count; ++i) {
                const double value = 0.2 * normal(first + i) + (parameter.init == Parameter::Init::one ? 1 : 0);
                convert(dtype, static_cast<std::byte*>(to) + i * size_of(dtype), DType::f64, &value, 1);
            }
        },
        ops);
}

class TrainingSteps {
  public:
    struct Result {
        double loss;  // mean over the targets of all ranks, before the update
        double norm;
    };

    TrainingSteps(Engine& engine, const TransformerLimits& limits)
        : transformer(engine.config, engine.units, with_workspace(engine, limits), limits, engine.carver),
          engine_(engine) {}

    /// One step on this rank's micro-batches; `targets` are those of all ranks together. Collective.
    [[nodiscard]] Result step(const std::vector<MicroBatch>& batches, std::int64_t targets, double lr,
                              std::int64_t count) {
        engine_.gradients.start(static_cast<std::int64_t>(batches.size()));
        const double scale = 1.0 / static_cast<double>(targets);
        double sum = 0;
        for (const MicroBatch& batch : batches) {
            sum += transformer.forward_backward(batch, scale, *engine_.source, engine_.gradients);
        }
        engine_.gradients.finish();
        const Result result{engine_.queue.communicator().ordered_sum(sum) * scale, engine_.optimizer.norm()};
        engine_.optimizer.step(lr, result.norm, count);
        engine_.source->publish();
        return result;
    }

    Transformer transformer;

  private:
    static Ops& with_workspace(Engine& engine, const TransformerLimits& limits) {
        const OpsLimits bounds = ops_limits(engine.config, limits);
        engine.ops->bind_workspace(engine.carver.bytes(engine.ops->workspace_bytes(bounds)), bounds);
        return *engine.ops;
    }

    Engine& engine_;
};

}  // namespace tessera::testing
