// config.json of a Hugging Face model directory: what it says about the mathematics, as a ModelConfig.
#pragma once

#include <string>
#include <vector>

#include "core/model_config.h"

namespace tessera {

/// Reads the text of a config.json; `path` is its name for messages. Keys that are missing have the defaults that
/// transformers gives to the family. Whatever changes the result and is not supported (other model types, activations,
/// rope types, quantisation, dropout, experts ...) throws bad_data with key and value. Keys that mean nothing to the
/// family add a line to `warnings`.
[[nodiscard]] ModelConfig read_model_config(const std::string& text, const std::string& path,
                                            std::vector<std::string>& warnings);

}  // namespace tessera
