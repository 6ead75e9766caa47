// The model of a job, opened: its description, its units, and the operations that will run it.
#pragma once

#include <memory>

#include "core/activations.h"
#include "core/job.h"
#include "core/memory.h"
#include "core/parameters.h"
#include "io/hf_model.h"
#include "kernels/ops.h"
#include "zero/model_states.h"

namespace tessera {

struct ModelSetup {
    HfModel model;
    std::vector<Unit> units;
    std::unique_ptr<Ops> ops;
    std::vector<std::string> warnings;  // lines worth showing to the user once
    bool random = false;                // weights are drawn, not read

    [[nodiscard]] const ModelConfig& config() const { return model.config(); }
    /// "f32" or "bf16"
    [[nodiscard]] std::string compute_dtype() const { return std::string(name_of(ops->storage())); }
};

/// Opens the model of a job whose device and bf16 are resolved. `check_weights`: also compares every tensor with what
/// the model needs (one rank is enough).
[[nodiscard]] ModelSetup open_model(const Job& job, bool check_weights);

/// Where the first weights come from. The setup must outlive it.
[[nodiscard]] ReadParameter initial_parameters(const Job& job, const ModelSetup& setup);

/// The job with device, bf16 and export dtype resolved, which need neither model nor data and come before them.
[[nodiscard]] Job resolve_device(Job job);

/// Elements of each unit, as a Partition takes them.
[[nodiscard]] std::vector<std::int64_t> unit_sizes(const std::vector<Unit>& units);

/// One block of memory, carved by a first pass of `build` that only counts and a second one that takes.
class PlannedMemory {
  public:
    explicit PlannedMemory(std::int64_t bytes) : memory_(bytes), carver_(memory_.span()) {}
    [[nodiscard]] Carver& carver() { return carver_; }

  private:
    Memory memory_;
    Carver carver_;
};

/// Lends the operations their workspace out of `memory`, and returns its carver for what comes next.
Carver& bind_workspace(PlannedMemory& memory, const ModelSetup& setup, const TransformerLimits& limits);

[[nodiscard]] std::int64_t total_bytes(const MemoryPlan& plan);

}  // namespace tessera
