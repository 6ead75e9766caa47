// What DeepSpeed's memory estimators say of a model under ZeRO-2 and ZeRO-3: its formulas and its tables, number for
// number, for those who know them. They are not what this program takes; ModelStates::plan and its like say that.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/parameters.h"

namespace tessera::deepspeed {

struct ModelSize {
    std::int64_t parameters = 0;     // each storage once
    std::int64_t largest_layer = 0;  // most parameters that one module holds itself: a weight and its bias
};
[[nodiscard]] ModelSize model_size(const std::vector<Unit>& units);

struct Cluster {
    std::int64_t gpus_per_node = 1;
    std::int64_t nodes = 1;
};

struct Estimate {
    bool offload_parameters = false;  // to host memory; ZeRO-3 only
    bool offload_optimizer = false;   // to host memory
    bool zero_init = false;           // ranks build their shard, not the whole model first; ZeRO-3 only
    std::int64_t cpu_bytes = 0;       // of a node, truncated
    std::int64_t gpu_bytes = 0;       // of a device, truncated
};

/// The choices in the order of DeepSpeed's tables. `buffer_factor`: what host memory is multiplied by. Throws usage for
/// a size below 1, a layer larger than its model, and for more bytes than 63 bits count.
[[nodiscard]] std::vector<Estimate> estimate_zero2(const ModelSize& size, const Cluster& cluster,
                                                   double buffer_factor = 1.5);
[[nodiscard]] std::vector<Estimate> estimate_zero3(const ModelSize& size, const Cluster& cluster,
                                                   double buffer_factor = 1.5);

/// What DeepSpeed prints for the same, character for character; lines end in a line feed.
[[nodiscard]] std::string zero2_table(const ModelSize& size, const Cluster& cluster);
[[nodiscard]] std::string zero3_table(const ModelSize& size, const Cluster& cluster);

}  // namespace tessera::deepspeed
