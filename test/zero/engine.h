// For tests: everything that trains a small model at a ZeRO stage, in one object.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/transformer.h"
#include "test/core/model_memory.h"
#include "test/core/mpi_world.h"
#include "test/zero/test_device.h"
#include "zero/gathered_parameters.h"
#include "zero/gradients.h"
#include "zero/resident_parameters.h"
#include "zero/sharded_optimizer.h"

namespace tessera::testing {

struct EngineOptions {
    DType storage = DType::f32;
    ZeroStage stage = 1;
    DType exchange = DType::f32;  // of gradients
    std::int64_t bucket = 1'000'000;
    std::int64_t call = 1;  // allgather_bucket_size
    bool overlap = false;
    GatherLimits gather = {};
    std::int64_t resident = -1;  // persistence threshold, at stage 3
    ShardedOptimizer::Options optimizer = {.weight_decay = 0.1, .no_decay = {"*norm*"}, .clipping = 0.5};
};

class Engine {
  public:
    /// `communicator` must outlive it; all of its ranks make one. `operations`: null for the device's own.
    Engine(const ModelConfig& model, const EngineOptions& chosen, const Communicator& communicator = world(),
           std::unique_ptr<Ops> operations = nullptr)
        : options(chosen),
          config(model),
          ops(operations ? std::move(operations) : device->make_ops({.storage = chosen.storage})),
          units(make_units(config,
                           chosen.stage == 3 ? Residency{chosen.resident, 16 * communicator.size()} : Residency{})),
          partition(units, communicator.size(), chosen.bucket),
          // The emulated device exchanges within calls of the host, which must not meet those that compare.
          queue(communicator, *device, progress, chosen.overlap, !kEmulated),
          memory(device->allocate(8 << 20)),
          carver(memory.span()),
          states(units, partition, {chosen.storage, chosen.stage, communicator.rank(), true}, carver),
          gradients(partition, Transformer::uses(config, Pass::backward).gradients, {chosen.stage, chosen.exchange},
                    *ops, queue, carver),
          optimizer(states, gradients, *ops, communicator, chosen.optimizer) {
        if (chosen.stage == 3) {
            const auto plan = [&](Pass last) {
                return GatherPlan(Transformer::uses(config, last).parameters, partition, chosen.gather);
            };
            source = std::make_unique<GatheredParameters>(
                states, queue, *ops, GatheredParameters::Plans{plan(Pass::forward), plan(Pass::backward)}, chosen.call,
                carver);
        } else {
            source = std::make_unique<ResidentParameters>(states, queue, chosen.call);
        }
    }
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    /// Drained first, as by whoever ends a run in order.
    ~Engine() {
        try {
            if (std::uncaught_exceptions() == 0) {
                queue.drain(Exchange::publish_parameters);
            }
        } catch (const std::exception& error) {
            FAIL_CHECK("the last exchanges: " << error.what());
        }
        queue.close();
    }

    /// The parameters, unit by unit, in the storage dtype, by a forward pass over all units. Collective.
    [[nodiscard]] std::map<std::string, std::vector<std::byte>> parameters() {
        std::map<std::string, std::vector<std::byte>> result;
        source->start(Pass::forward);
        for (const UnitUse& use : Transformer::uses(config, Pass::forward).parameters) {
            const auto token = source->acquire(use.unit, Pass::forward);
            for (const Parameter& parameter : units[static_cast<std::size_t>(use.unit)].parameters) {
                const ConstMatrix view = token.view(parameter);
                std::vector<std::byte>& values = result[parameter.name];
                values.resize(static_cast<std::size_t>(parameter.elements() * size_of(options.storage)));
                ops->read(values, view);
            }
        }
        return result;
    }

    EngineOptions options;
    ModelConfig config;
    std::unique_ptr<Device> device = make_device();
    std::unique_ptr<Ops> ops;
    std::vector<Unit> units;
    Partition partition;
    Progress progress;
    CommunicationQueue queue;
    Memory memory;
    Carver carver;
    ModelStates states;
    Gradients gradients;
    ShardedOptimizer optimizer;
    std::unique_ptr<PublishedParameters> source;
};

}  // namespace tessera::testing
