// All that a log_prob job decides before it allocates anything.
#pragma once

#include <memory>
#include <optional>

#include "apps/free_memory.h"
#include "apps/log_prob_plan.h"
#include "apps/model_setup.h"
#include "core/activations.h"
#include "zero/partition.h"

namespace tessera {

class LogProbSetup {
  public:
    /// `first`: this rank also does the checks that one rank alone need do.
    LogProbSetup(Job job, Device& device, std::int64_t ranks, bool first, const FreeMemory& free);
    LogProbSetup(const LogProbSetup&) = delete;
    LogProbSetup& operator=(const LogProbSetup&) = delete;

    [[nodiscard]] Device& device() { return device_; }
    [[nodiscard]] const Job& job() const { return job_; }
    [[nodiscard]] const ModelSetup& model() const { return model_; }
    [[nodiscard]] Ops& ops() { return *model_.ops; }
    [[nodiscard]] TokenData& data() { return *data_; }
    [[nodiscard]] const LogProbPlan& scoring() const { return *scoring_; }
    [[nodiscard]] const Partition& partition() const { return *partition_; }
    [[nodiscard]] const TransformerLimits& limits() const { return limits_; }
    [[nodiscard]] const std::optional<GatheredParameters::Plans>& gather_plans() const { return gather_plans_; }
    [[nodiscard]] ModelStates::Options states_options(std::int64_t rank) const;
    /// Bytes of a rank by purpose.
    [[nodiscard]] const MemoryPlan& plan() const { return plan_; }
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> summary() const;
    [[nodiscard]] const std::vector<std::string>& warnings() const { return model_.warnings; }

  private:
    void resolve_memory(std::int64_t ranks, const FreeMemory& free);

    Device& device_;
    Job job_;
    ModelSetup model_;
    std::unique_ptr<TokenData> data_;
    std::optional<LogProbPlan> scoring_;
    std::optional<Partition> partition_;
    std::optional<GatheredParameters::Plans> gather_plans_;
    TransformerLimits limits_;
    MemoryPlan plan_;
    std::string memory_;
};

}  // namespace tessera
