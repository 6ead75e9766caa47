// The model of a job, opened: its description, its units, and the operations that will run it.
#pragma once

#include <memory>
#include <optional>

#include "core/activations.h"
#include "core/job.h"
#include "core/memory.h"
#include "core/parameters.h"
#include "io/hf_model.h"
#include "kernels/device.h"
#include "zero/gathered_parameters.h"
#include "zero/model_states.h"
#include "zero/resident_parameters.h"

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
/// the model needs (one rank is enough). The units are those of stages 0 to 2; see units_of.
[[nodiscard]] ModelSetup open_model(const Job& job, Device& device, bool check_weights);

/// The units of a model as the stage of the job lays them out for so many ranks; resolves what of stage 3 depends on
/// the model.
[[nodiscard]] std::vector<Unit> units_of(Job& job, const ModelConfig& config, std::int64_t ranks);

/// What stage 3 gathers when; nothing at other stages. `training`: backward follows.
[[nodiscard]] std::optional<GatheredParameters::Plans> plan_gathers(const Job& job, const ModelSetup& setup,
                                                                    const Partition& partition, bool training);

/// The parameters as a model sees them: whole, or gathered where there are `plans`.
[[nodiscard]] std::unique_ptr<PublishedParameters> make_parameter_source(
    const ModelStates& states, CommunicationQueue& queue, Ops& ops,
    const std::optional<GatheredParameters::Plans>& plans, std::int64_t call_elements, Carver& carver);

/// Buckets as the job says; "auto" becomes the largest unit, but at most 5e7 elements.
void resolve_buckets(Job& job, const std::vector<Unit>& units);

/// Where the first weights come from. The setup must outlive it.
[[nodiscard]] ReadParameter initial_parameters(const Job& job, const ModelSetup& setup);

/// The job with device, bf16 and export dtype resolved, which need neither model nor data and come before them.
[[nodiscard]] Job resolve_device(Job job, const Device& device);

/// One block of memory, carved by a first pass of `build` that only counts and a second one that takes.
class PlannedMemory {
  public:
    /// On this rank alone: before anything that all ranks do together needs it.
    PlannedMemory(Device& device, const MemoryPlan& plan);
    [[nodiscard]] Carver& carver() { return carver_; }

  private:
    Memory memory_;
    Carver carver_;
};

/// Lends the operations their workspace out of `memory`, and returns its carver for what comes next.
Carver& bind_workspace(PlannedMemory& memory, const ModelSetup& setup, const TransformerLimits& limits);

[[nodiscard]] std::int64_t total_bytes(const MemoryPlan& plan);

/// The plan, and what a rank takes besides it of the same memory: where that is the host's, libraries, thread stacks,
/// token lists, MPI's and oneDNN's buffers.
[[nodiscard]] std::int64_t bytes_with_libraries(const MemoryPlan& plan, const Device& device);

/// Rows of a tile of logits for micro-batches of so many tokens.
[[nodiscard]] std::int64_t logits_rows_of(const Job& job, const ModelConfig& config, std::int64_t tokens);

}  // namespace tessera
