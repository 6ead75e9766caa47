// All that a training job decides before it allocates anything: what `train check` shows and a run executes.
#pragma once

#include <memory>
#include <optional>

#include "apps/model_setup.h"
#include "core/activations.h"
#include "io/row_order.h"
#include "io/rows.h"
#include "io/token_data.h"
#include "zero/partition.h"
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
    TrainingSetup(Job job, std::int64_t ranks, bool first);
    TrainingSetup(const TrainingSetup&) = delete;
    TrainingSetup& operator=(const TrainingSetup&) = delete;

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
    [[nodiscard]] const Partition& partition() const { return *partition_; }
    [[nodiscard]] const TransformerLimits& limits() const { return limits_; }
    [[nodiscard]] ModelStates::Options states_options(std::int64_t rank) const;
    [[nodiscard]] ShardedOptimizer::Options optimizer_options() const;
    /// Bytes of a rank by purpose.
    [[nodiscard]] const MemoryPlan& plan() const { return plan_; }
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> summary() const;
    [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  private:
    [[nodiscard]] RowSet open_rows(const std::vector<std::string>& patterns);
    void resolve_data();
    void resolve_memory(std::int64_t ranks);

    Job job_;
    ModelSetup model_;
    RowSet train_;
    std::optional<RowSet> eval_;
    std::optional<RowOrder> order_;
    BatchShape batch_;
    std::int64_t total_steps_ = 0;
    std::optional<Partition> partition_;
    TransformerLimits limits_;
    MemoryPlan plan_;
    std::vector<std::string> warnings_;
};

}  // namespace tessera
