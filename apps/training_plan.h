// What a rank of a training job keeps in memory and exchanges, decided from the model and the job alone: a run executes
// it, `train estimate` shows it for any number of ranks.
#pragma once

#include <optional>
#include <vector>

#include "apps/model_setup.h"
#include "zero/sharded_optimizer.h"

namespace tessera {

struct TrainingPlan {
    std::vector<Unit> units;
    Partition partition;
    std::vector<UnitUse> gradient_uses;  // UnitUses::gradients of a micro-batch
    std::optional<GatheredParameters::Plans> gather_plans;
    MemoryPlan model_states;  // parameters, masters, moments and summed gradients
    MemoryPlan exchange;      // what the stage needs to fill and exchange them
    TrafficPlan traffic;      // of a step
};

[[nodiscard]] ModelStates::Options training_states(const Job& job, const ModelSetup& model, std::int64_t rank);

[[nodiscard]] Gradients::Options gradient_options(const Job& job);

/// Resolves what the job leaves open and the plan needs, the stage apart.
[[nodiscard]] TrainingPlan plan_training(Job& job, const ModelSetup& model, std::int64_t ranks);

/// Bounds of the micro-batches of a job whose rows have at most so many tokens, of which so many attend to each other.
[[nodiscard]] TransformerLimits training_limits(const Job& job, const ModelConfig& config, std::int64_t tokens_per_row,
                                                std::int64_t longest_segment);

}  // namespace tessera
