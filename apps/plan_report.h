// Plans of memory and exchanges for people and programs to read.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/parameters.h"
#include "zero/traffic.h"

namespace tessera {

/// "reduce gradients 1,234 bytes in 5 calls, ..."; "nothing" for one rank.
[[nodiscard]] std::string in_words(const TrafficPlan& plan);

/// Bytes by purpose.
[[nodiscard]] nlohmann::ordered_json to_json(const MemoryPlan& plan);

/// A list of {purpose, unit, calls, bytes}; unit is null where a call is for several.
[[nodiscard]] nlohmann::ordered_json to_json(const TrafficPlan& plan, const std::vector<Unit>& units);

}  // namespace tessera
