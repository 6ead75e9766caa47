// For tests: units of which only the sizes matter.
#pragma once

#include <vector>

#include "core/parameters.h"

namespace tessera::testing {

/// Units of these sizes, of which nothing stays resident.
inline std::vector<Unit> sized_units(const std::vector<std::int64_t>& sizes) {
    std::vector<Unit> units;
    for (const std::int64_t size : sizes) {
        units.push_back({.name = "unit", .parameters = {}, .elements = size, .resident_from = size});
    }
    return units;
}

}  // namespace tessera::testing
