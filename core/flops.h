// Floating-point operations of a model: what a step computes at least, whatever computes it.
#pragma once

#include <cstdint>

#include "core/model_config.h"

namespace tessera {

/// What a rank trains on in a step: rows of `length` tokens that attend to each other, each with a target.
struct StepShape {
    std::int64_t rows = 0;
    std::int64_t length = 0;
    bool recompute = false;  // gradient checkpointing: blocks are computed again in backward
};

/// Two for each multiplication and addition of the matrix products and of causal attention, forward and backward (twice
/// as many): 6 a weight and token, as Kaplan et al. 2020 count, and 12 a layer, visible pair and element of the
/// queries' heads. With checkpointing the forward part again of all blocks but the last, without the down projection,
/// whose result nobody needs. The embedding is a look-up. In double: counts exceed 2^63.
[[nodiscard]] double flops_of_step(const ModelConfig& config, const StepShape& shape);

}  // namespace tessera
