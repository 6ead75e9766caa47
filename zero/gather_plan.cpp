#include "zero/gather_plan.h"

#include <algorithm>
#include <limits>

#include "zero/lifetimes.h"

namespace tessera {
namespace {

/// A stay being planned: uses [first, last] of one unit, by their numbers.
struct Stay {
    std::int64_t unit;
    std::int64_t size;
    std::int64_t first;
    std::int64_t issued;  // a use
    std::int64_t released;
    std::vector<std::int64_t> members;
};

class Planner {
  public:
    Planner(const std::vector<UnitUse>& uses, const Partition& partition, const GatherLimits& limits)
        : uses_(uses), limits_(limits), live_(limits.live.value_or(std::numeric_limits<std::int64_t>::max())) {
        for (std::int64_t unit = 0; unit < partition.units(); ++unit) {
            sizes_.push_back(partition.gathered_elements(unit));
        }
        for (std::int64_t use = 0; use < count(); ++use) {
            if (size_of_use(use) > 0) {
                join_or_add(use);
            }
        }
        const std::int64_t least = largest_sum(lifetimes());
        if (least > live_) {
            fail(
                ExitCode::usage,
                "zero_optimization.stage3_max_live_parameters = {} is less than this model needs at the same time: the "
                "least that works is {}",
                live_, least);
        }
        reuse();
        prefetch();
    }

    [[nodiscard]] const std::vector<Stay>& stays() const { return stays_; }

    /// In which times (as in UnitUse) each stay's memory is taken.
    [[nodiscard]] std::vector<Lifetime> lifetimes() const {
        std::vector<Lifetime> result;
        for (const Stay& stay : stays_) {
            result.push_back({uses_[static_cast<std::size_t>(stay.issued)].begin, stay.released + 1, stay.size});
        }
        return result;
    }

  private:
    [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(uses_.size()); }
    [[nodiscard]] std::int64_t size_of_use(std::int64_t use) const {
        return sizes_[static_cast<std::size_t>(uses_[static_cast<std::size_t>(use)].unit)];
    }

    /// Without a bound nothing is counted: the count takes quadratic time, for each stay.
    [[nodiscard]] bool too_many_live() const { return limits_.live && largest_sum(lifetimes()) > live_; }

    /// A use that begins while the unit is held anyway joins that stay.
    void join_or_add(std::int64_t use) {
        const UnitUse& one = uses_[static_cast<std::size_t>(use)];
        for (Stay& stay : stays_) {
            if (stay.unit == one.unit && one.begin < stay.released) {
                stay.members.push_back(use);
                stay.released = std::max(stay.released, one.end);
                return;
            }
        }
        stays_.push_back({one.unit, size_of_use(use), use, use, one.end, {use}});
    }

    /// Joins stays of one unit that are near enough, as far as the bound of what is live allows.
    void reuse() {
        for (std::size_t i = 0; i < stays_.size(); ++i) {
            for (std::size_t j = i + 1; j < stays_.size(); ++j) {
                if (stays_[j].unit != stays_[i].unit) {
                    continue;
                }
                std::int64_t distance = 0;
                for (std::int64_t use = stays_[i].members.back() + 1; use < stays_[j].first; ++use) {
                    const bool own = uses_[static_cast<std::size_t>(use)].unit == stays_[i].unit;
                    distance += own ? 0 : size_of_use(use);
                }
                if (distance > limits_.reuse_distance) {
                    break;
                }
                const std::vector<Stay> before = stays_;
                stays_[i].members.insert(stays_[i].members.end(), stays_[j].members.begin(), stays_[j].members.end());
                stays_[i].released = stays_[j].released;
                stays_.erase(stays_.begin() + static_cast<std::ptrdiff_t>(j));
                if (too_many_live()) {
                    stays_ = before;
                    break;
                }
                --j;
            }
        }
    }

    /// Begins each stay as early as the limits allow, the earliest needed first.
    void prefetch() {
        for (std::size_t i = 1; i < stays_.size(); ++i) {
            // Gathers begin in the order of their need.
            const std::int64_t earliest = stays_[i - 1].issued;
            for (std::int64_t use = stays_[i].first - 1; use >= earliest; --use) {
                const std::int64_t before = stays_[i].issued;
                stays_[i].issued = use;
                if (ahead(i, use) > limits_.prefetch.value_or(stays_[i].size) || too_many_live()) {
                    stays_[i].issued = before;
                    break;
                }
                if (!limits_.prefetch && use <= stays_[i - 1].first) {
                    break;  // "auto": one unit ahead
                }
            }
        }
    }

    /// Elements that are gathered and not yet needed when `use` has begun, stay i and those before it counted.
    [[nodiscard]] std::int64_t ahead(std::size_t i, std::int64_t use) const {
        std::int64_t elements = 0;
        for (std::size_t j = 0; j <= i; ++j) {
            elements += stays_[j].issued <= use && stays_[j].first > use ? stays_[j].size : 0;
        }
        return elements;
    }

    const std::vector<UnitUse>& uses_;
    GatherLimits limits_;
    std::int64_t live_;
    std::vector<std::int64_t> sizes_;
    std::vector<Stay> stays_;
};

}  // namespace

GatherPlan::GatherPlan(std::vector<UnitUse> all_uses, const Partition& partition, const GatherLimits& limits)
    : uses(std::move(all_uses)), gather_of(uses.size(), -1) {
    const Planner planner(uses, partition, limits);
    std::vector<Lifetime> lifetimes = planner.lifetimes();
    largest_live_elements = largest_sum(lifetimes);
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
        // Resident parameters are put behind those that are gathered.
        lifetimes[i].size = partition.padded_elements(planner.stays()[i].unit);
    }
    const Placement placement = place(lifetimes);
    block_elements = placement.size;
    for (std::size_t i = 0; i < planner.stays().size(); ++i) {
        const Stay& stay = planner.stays()[i];
        for (const std::int64_t member : stay.members) {
            gather_of[static_cast<std::size_t>(member)] = static_cast<std::int64_t>(i);
        }
        gathers.push_back({stay.unit, stay.issued, stay.first, stay.released, placement.offsets[i]});
    }
}

std::int64_t GatherPlan::gathered_elements(const Partition& partition) const {
    std::int64_t elements = 0;
    for (const UnitGather& gather : gathers) {
        elements += partition.gathered_elements(gather.unit);
    }
    return elements;
}

}  // namespace tessera
