// All that a training job decides before it allocates anything: what `train check` shows and a run executes.
#pragma once

#include <memory>
#include <optional>

#include "apps/free_memory.h"
#include "apps/training_plan.h"
#include "core/activations.h"
#include "io/row_order.h"
#include "io/rows.h"
#include "io/token_data.h"
#include "zero/sharded_optimizer.h"

namespace tessera {

/// Rows of a data set, with the data they are read from.
struct RowSet {
    std::unique_ptr<TokenData> data;
    std::unique_ptr<Rows> rows;
};

class TrainingSetup {
  public:
    /// Opens model and data and resolves every "auto" for `ranks` ranks. `first`: this rank also does the checks that
    /// one rank alone need do.
    /// Stage and gradient checkpointing become the cheapest that fit into `free`, where the job leaves them open; a job
    /// that does not fit is refused with the numbers and the cheapest change that would: Error(internal).
    TrainingSetup(Job job, Device& device, std::int64_t ranks, bool first, const FreeMemory& free);
    TrainingSetup(const TrainingSetup&) = delete;
    TrainingSetup& operator=(const TrainingSetup&) = delete;

    [[nodiscard]] Device& device() { return device_; }
    [[nodiscard]] const Job& job() const { return job_; }
    [[nodiscard]] const ModelSetup& model() const { return model_; }
    [[nodiscard]] Ops& ops() { return *model_.ops; }
    [[nodiscard]] RowSet& train() { return train_; }
    /// Nothing where the job has no [data].eval.
    [[nodiscard]] std::optional<RowSet>& eval() { return eval_; }
    [[nodiscard]] const RowOrder& order() const { return *order_; }
    [[nodiscard]] const BatchShape& batch() const { return batch_; }
    /// Steps of a run that starts at the first row.
    [[nodiscard]] std::int64_t total_steps() const { return total_steps_; }
    [[nodiscard]] std::int64_t horizon() const {
        return job_.training.training_horizon > 0 ? job_.training.training_horizon : total_steps_;
    }
    [[nodiscard]] const std::vector<Unit>& units() const { return layout_->training.units; }
    [[nodiscard]] const Partition& partition() const { return layout_->training.partition; }
    /// UnitUses::gradients of a micro-batch.
    [[nodiscard]] const std::vector<UnitUse>& gradient_uses() const { return layout_->training.gradient_uses; }
    [[nodiscard]] const std::optional<GatheredParameters::Plans>& gather_plans() const {
        return layout_->training.gather_plans;
    }
    [[nodiscard]] const TransformerLimits& limits() const { return layout_->limits; }
    [[nodiscard]] ModelStates::Options states_options(std::int64_t rank) const {
        return training_states(job_, model_, rank);
    }
    [[nodiscard]] ShardedOptimizer::Options optimizer_options() const;
    /// What a rank exchanges with the others in a step.
    [[nodiscard]] const TrafficPlan& traffic() const { return layout_->training.traffic; }
    /// Bytes of a rank by purpose.
    [[nodiscard]] const MemoryPlan& plan() const { return layout_->memory; }
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> summary() const;
    [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  private:
    [[nodiscard]] RowSet open_rows(const std::vector<std::string>& patterns);
    void resolve_data();
    /// What follows from a job whose stage and gradient checkpointing are decided.
    struct Layout {
        Job job;
        TrainingPlan training;
        TransformerLimits limits;
        MemoryPlan memory;
    };
    [[nodiscard]] Layout lay_out(Job job) const;
    void resolve_memory(const FreeMemory& free);
    /// In words, for a job that does not fit.
    [[nodiscard]] std::string cheapest_change(const FreeMemory& free) const;

    Device& device_;
    Job job_;
    ModelSetup model_;
    RowSet train_;
    std::optional<RowSet> eval_;
    std::optional<RowOrder> order_;
    BatchShape batch_;
    std::int64_t total_steps_ = 0;
    std::optional<Layout> layout_;
    std::string memory_;  // what is free, and what was rejected
    std::vector<std::string> warnings_;
};

}  // namespace tessera
