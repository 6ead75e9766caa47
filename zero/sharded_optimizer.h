// The end of a step: global norm of the summed gradients, clipping, Adam on the own ranges.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "zero/gradients.h"
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
        /// Of bf16 weights that are rounded at random; else to nearest.
        std::optional<std::int64_t> rounding_seed = std::nullopt;
    };

    ShardedOptimizer(const ModelStates& states, const Gradients& gradients, Ops& ops, const Communicator& communicator,
                     const Options& options);

    /// The global L2 norm of the final gradients: squares added in double in the order of the shard, then in rank
    /// order, rounded to fp32.
    [[nodiscard]] double norm() const;

    /// One update with learning rate `lr`. `norm` is what norm() returned, `count` the number of this update from 1.
    void step(double lr, double norm, std::int64_t count);

    /// Name of the first parameter with a gradient that is not finite on this rank; empty if there is none.
    [[nodiscard]] std::string first_non_finite() const;

  private:
    /// A part of a parameter that this rank updates.
    struct Run {
        const Parameter* parameter;
        std::int64_t from;  // its first element here
        bool decays;
        Matrix values;  // in the storage dtype; empty where the masters are the parameters
        Matrix master;
        Matrix first_moment;
        Matrix second_moment;
        ConstMatrix gradient;
    };

    const Gradients& gradients_;
    Ops& ops_;
    const Communicator& communicator_;
    Options options_;
    std::vector<Run> runs_;
    std::vector<UnitRange> owned_;
};

}  // namespace tessera
