// Weights in bf16 that are rounded at random from their masters: the same bits when an optimizer writes them and when
// they are made again from a checkpoint's masters, at any number of ranks.
#pragma once

#include "kernels/stochastic_rounding.h"
#include "zero/model_states.h"

namespace tessera {

/// How update number `update` (from 1) rounds the elements of a parameter from `first` on.
[[nodiscard]] StochasticRounding rounding_of(std::int64_t seed, const Parameter& parameter, std::int64_t first,
                                             std::int64_t update);

/// What `read` reads; as bf16, as update number `update` rounded it.
[[nodiscard]] ReadParameter rounded_at_random(ReadParameter read, std::int64_t seed, std::int64_t update);

}  // namespace tessera
