// The weights of a model directory or of a checkpoint, seen alike: parameters by name, read in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "io/hf_model.h"
#include "zero/sharded_checkpoint.h"

namespace tessera {

struct NamedWeights {
    std::string path;
    std::vector<Unit> units;
    ReadParameter read;  // keeps what it reads from; not for several threads
};

/// Throws where the weights are not there or are not what config.json asks for.
[[nodiscard]] NamedWeights weights_of(std::shared_ptr<const HfModel> model);
/// The fp32 masters.
[[nodiscard]] NamedWeights weights_of(std::shared_ptr<ShardedCheckpoint> checkpoint);

/// Calls visit(first, values) for the pieces of a parameter, as float32 in order.
void for_each_piece(const NamedWeights& weights, const Parameter& parameter,
                    const std::function<void(std::int64_t first, const std::vector<float>& values)>& visit);

/// An element of a parameter.
struct WeightPlace {
    std::string name;
    std::vector<std::int64_t> index;

    /// "model.norm.weight[3]"; empty where there is none.
    [[nodiscard]] std::string text() const;
};
[[nodiscard]] WeightPlace place_of(const Parameter& parameter, std::int64_t element);

struct WeightSummary {
    std::int64_t parameters = 0;
    double norm = 0;  // L2 over all finite values, summed in double
    std::string largest_parameter;
    std::int64_t largest_count = 0;
    double largest_value = 0;  // absolute, of the finite ones
    WeightPlace largest_place;
    std::int64_t non_finite = 0;
    WeightPlace first_non_finite;
};
/// Reads all weights once.
[[nodiscard]] WeightSummary summarize(const NamedWeights& weights);

}  // namespace tessera
