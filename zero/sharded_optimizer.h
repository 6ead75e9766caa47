// The end of a step: gradients summed over the ranks, global norm, clipping, Adam on the own ranges, new parameters to
// all.
#pragma once

#include <string>
#include <vector>

#include "core/communicator.h"
#include "kernels/ops.h"
#include "zero/model_states.h"

namespace tessera {

class ShardedOptimizer {
  public:
    struct Options {
        bool decoupled = true;  // AdamW, else Adam
        double beta1 = 0.9;
        double beta2 = 0.999;
        double eps = 1e-8;
        double weight_decay = 0;
        std::vector<std::string> no_decay;  // shell patterns on whole parameter names
        double clipping = 0;                // limit of the global norm; 0: none
        std::int64_t gather_elements = 0;   // elements gathered in one call (whole buckets)
    };

    /// Takes the buffer of the exchange from `carver`: plan() bytes.
    ShardedOptimizer(ModelStates& states, Ops& ops, const Communicator& communicator, const Options& options,
                     Carver& carver);

    [[nodiscard]] static MemoryPlan plan(const Partition& partition);

    /// Sums every bucket over the ranks in rank order into the owner's piece (stage 0: and gathers it), and returns the
    /// global L2 norm: squares added in double in the order of the shard, then in rank order, rounded to fp32.
    [[nodiscard]] double reduce();

    /// One update with learning rate `lr`. `norm` is what reduce() returned, `count` the number of this update from 1.
    void step(double lr, double norm, std::int64_t count);

    /// Parameters of all ranks from their owners' masters.
    void publish();

    /// Name of the first parameter with a gradient that is not finite on this rank; empty if there is none.
    [[nodiscard]] std::string first_non_finite() const;

  private:
    /// A part of a parameter that this rank updates.
    struct Run {
        std::int64_t flat;
        std::int64_t master;
        std::int64_t moments;
        std::int64_t count;
        bool decays;
        const Parameter* parameter;
    };
    void gather(Matrix flat) const;

    ModelStates& states_;
    Ops& ops_;
    const Communicator& communicator_;
    Options options_;
    std::vector<Run> runs_;
    std::vector<UnitRange> owned_;
    Matrix exchange_;  // [ranks, largest piece] f32
};

}  // namespace tessera
