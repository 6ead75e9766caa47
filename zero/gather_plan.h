// Stage 3: which parameters are gathered when, and where they lie; all of it is known before the first step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/unit_memory.h"
#include "zero/partition.h"

namespace tessera {

/// In elements, of the parameters that are gathered; nullopt is "auto".
struct GatherLimits {
    std::optional<std::int64_t> prefetch = {};  // gathered before the unit is used: whole units; auto: the next one
    std::optional<std::int64_t> live = {};      // most at any time; auto: no bound
    std::int64_t reuse_distance = 0;            // a unit stays where no more than so many others are used in between
};

/// One gathering of a unit, and how long it stays.
struct UnitGather {
    std::int64_t unit = 0;
    std::int64_t issued = 0;    // begins when the acquisition of this number (from 0) has got its own unit
    std::int64_t needed = 0;    // the first acquisition that uses it; issued == needed: it is not begun before
    std::int64_t released = 0;  // time (as in UnitUse) of the release after which it is no longer there
    std::int64_t offset = 0;    // of its elements in the block of gathered parameters

    bool operator==(const UnitGather&) const = default;
};

struct GatherPlan {
    std::vector<UnitUse> uses;
    std::vector<UnitGather> gathers;         // in the order of their beginning
    std::vector<std::int64_t> gather_of;     // for each use its gather; -1: the unit is resident as a whole
    std::int64_t block_elements = 0;         // of the block of gathered parameters
    std::int64_t largest_live_elements = 0;  // most that is gathered at any time

    /// `uses` in the order of their beginnings. Throws usage where `limits.live` is less than the least that works.
    GatherPlan(std::vector<UnitUse> uses, const Partition& partition, const GatherLimits& limits);

    /// Elements gathered in a micro-batch, of all ranks together.
    [[nodiscard]] std::int64_t gathered_elements(const Partition& partition) const;
};

}  // namespace tessera
