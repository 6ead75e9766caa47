// The rope part of a Hugging Face config.json, in both of its spellings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model_config.h"

namespace tessera {

class JsonObject;

/// Reads rope_parameters (transformers 5) or rope_theta with rope_scaling (4). Where both are there they must agree.
/// Throws bad_data with key and value for an unknown type and whatever is not supported; adds a line to `warnings` for
/// each key that the type does not use.
[[nodiscard]] RopeConfig read_rope(const JsonObject& config, std::int64_t max_position_embeddings,
                                   std::vector<std::string>& warnings);

}  // namespace tessera
