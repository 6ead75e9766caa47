// Who owns which elements: units cut into buckets, each bucket split evenly over the ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/parameters.h"

namespace tessera {

/// `piece` elements for each rank, one rank after another, from element `first` of its unit on. What lies beyond the
/// unit's elements is padding: zeros.
struct Bucket {
    std::int64_t unit = 0;
    std::int64_t first = 0;
    std::int64_t piece = 0;
    std::int64_t shard = 0;  // where the piece lies in a rank's shard: elements from its start
    bool resident = false;   // its parameters stay on every rank (stage 3)

    bool operator==(const Bucket&) const = default;
};

/// Elements [first, first + count) of a unit without padding, and where they are kept.
struct UnitRange {
    std::int64_t unit = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t flat = 0;   // in the concatenation of all units, padding counted
    std::int64_t shard = 0;  // in the shard of the rank that owns it
};

/// Buckets of one size that lie one after another, to be gathered in one call.
struct BucketRun {
    std::int64_t offset = 0;  // of the first bucket where it is gathered
    std::int64_t shard = 0;   // of the first one's piece; within a unit the other pieces follow it
    std::int64_t buckets = 0;
    std::int64_t piece = 0;
};

/// Adds a bucket that is gathered at `offset` to the last run, or begins a new one where its size is another or the run
/// would exceed `limit` elements of all `ranks`.
void join(std::vector<BucketRun>& runs, const Bucket& bucket, std::int64_t offset, std::int64_t ranks,
          std::int64_t limit);

/// Calls visit(parameter, first, count, skip) for what a range holds of each parameter of its unit: elements [first,
/// first + count) of the parameter, from element `skip` of the range on.
template <typename Visit>
void for_each_part(const Unit& unit, const UnitRange& range, const Visit& visit) {
    for (const Parameter& parameter : unit.parameters) {
        const std::int64_t first = std::max(range.first, parameter.offset);
        const std::int64_t end = std::min(range.first + range.count, parameter.offset + parameter.elements());
        if (first < end) {
            visit(parameter, first - parameter.offset, end - first, first - range.first);
        }
    }
}

class Partition {
  public:
    /// Of `units`, the sizes count. Buckets have at most `bucket_elements` elements (at least one alignment step a
    /// rank), rounded up so that every piece starts at a multiple of 16 elements. A bucket is resident as a whole or
    /// not at all: a unit's resident_from is its end, or a multiple of 16 x ranks.
    Partition(const std::vector<Unit>& units, std::int64_t ranks, std::int64_t bucket_elements);

    [[nodiscard]] std::int64_t ranks() const { return ranks_; }
    [[nodiscard]] std::int64_t bucket_elements() const { return bucket_elements_; }
    [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
    /// Elements of one unit without padding.
    [[nodiscard]] std::int64_t unit_elements(std::int64_t unit) const {
        return elements_[static_cast<std::size_t>(unit)];
    }
    [[nodiscard]] std::int64_t units() const { return static_cast<std::int64_t>(elements_.size()); }
    /// Elements of a unit's buckets that are not resident, padding counted.
    [[nodiscard]] std::int64_t gathered_elements(std::int64_t unit) const;
    /// Elements of a unit's buckets, padding counted.
    [[nodiscard]] std::int64_t padded_elements(std::int64_t unit) const { return flat(unit + 1) - flat(unit); }
    /// Where a unit starts in the concatenation of all units, padding counted; with the number of units: its end.
    [[nodiscard]] std::int64_t flat(std::int64_t unit) const { return flat_[static_cast<std::size_t>(unit)]; }
    /// Elements of all units, padding counted.
    [[nodiscard]] std::int64_t flat_elements() const { return flat_.back(); }
    /// Elements of a rank's shard, padding counted: the same for every rank.
    [[nodiscard]] std::int64_t shard_elements() const { return shard_elements_; }
    [[nodiscard]] std::int64_t largest_piece() const;

    /// What `rank` owns, in the order of its shard; empty pieces are left out.
    [[nodiscard]] std::vector<UnitRange> owned(std::int64_t rank) const;
    /// Everything, one range a unit, with `shard` = `flat`: the layout of states that are not sharded.
    [[nodiscard]] std::vector<UnitRange> everything() const;

  private:
    std::vector<std::int64_t> elements_;
    std::int64_t ranks_;
    std::int64_t bucket_elements_;
    std::vector<Bucket> buckets_;
    std::vector<std::int64_t> flat_;  // units + 1 entries
    std::int64_t shard_elements_ = 0;
};

/// The calls that give each unit's buckets, those that are resident left out, to all ranks: by unit, with offsets in
/// it, of at most `limit` elements or one bucket.
[[nodiscard]] std::vector<std::vector<BucketRun>> gathered_runs(const Partition& partition, std::int64_t limit);

}  // namespace tessera
