#include "zero/partition.h"

#include <algorithm>

#include "core/base/checked.h"
#include "core/parameters.h"

namespace tessera {

Partition::Partition(const std::vector<Unit>& units, std::int64_t ranks, std::int64_t bucket_elements) : ranks_(ranks) {
    const std::int64_t step = checked_mul(ranks, kParameterAlignment, "elements of a bucket");
    bucket_elements_ = round_up(std::max<std::int64_t>(bucket_elements, 1), step);
    std::int64_t flat = 0;
    for (const Unit& unit : units) {
        const std::int64_t index = this->units();
        flat_.push_back(flat);
        elements_.push_back(unit.elements);
        std::int64_t first = 0;
        const auto cut = [&](std::int64_t end, bool resident) {
            while (first < end) {
                const std::int64_t size = std::min(bucket_elements_, round_up(end - first, step));
                buckets_.push_back({index, first, size / ranks, shard_elements_, resident});
                shard_elements_ += size / ranks;
                first += size;
            }
        };
        cut(unit.resident_from, false);
        if (unit.resident_from < unit.elements && first != unit.resident_from) {
            fail(ExitCode::internal, "the resident part of unit {} begins within a bucket", unit.name);
        }
        cut(unit.elements, true);
        flat = checked_add(flat, first, "elements of a model");
    }
    flat_.push_back(flat);
}

std::int64_t Partition::gathered_elements(std::int64_t unit) const {
    std::int64_t elements = 0;
    for (const Bucket& bucket : buckets_) {
        elements += bucket.unit == unit && !bucket.resident ? bucket.piece * ranks_ : 0;
    }
    return elements;
}

std::int64_t Partition::largest_piece() const {
    std::int64_t largest = 0;
    for (const Bucket& bucket : buckets_) {
        largest = std::max(largest, bucket.piece);
    }
    return largest;
}

std::vector<UnitRange> Partition::owned(std::int64_t rank) const {
    std::vector<UnitRange> ranges;
    for (const Bucket& bucket : buckets_) {
        const std::int64_t first = bucket.first + rank * bucket.piece;
        const std::int64_t count = std::min(bucket.piece, unit_elements(bucket.unit) - first);
        if (count > 0) {
            ranges.push_back({bucket.unit, first, count, flat(bucket.unit) + first, bucket.shard});
        }
    }
    return ranges;
}

std::vector<UnitRange> Partition::everything() const {
    std::vector<UnitRange> ranges;
    for (std::int64_t unit = 0; unit < units(); ++unit) {
        ranges.push_back({unit, 0, unit_elements(unit), flat(unit), flat(unit)});
    }
    return ranges;
}

void join(std::vector<BucketRun>& runs, const Bucket& bucket, std::int64_t offset, std::int64_t ranks,
          std::int64_t limit) {
    if (runs.empty() || runs.back().piece != bucket.piece || (runs.back().buckets + 1) * bucket.piece * ranks > limit) {
        runs.push_back({offset, bucket.shard, 1, bucket.piece});
    } else {
        ++runs.back().buckets;
    }
}

std::vector<std::vector<BucketRun>> gathered_runs(const Partition& partition, std::int64_t limit) {
    std::vector<std::vector<BucketRun>> runs(static_cast<std::size_t>(partition.units()));
    for (const Bucket& bucket : partition.buckets()) {
        if (!bucket.resident) {
            join(runs[static_cast<std::size_t>(bucket.unit)], bucket, bucket.first, partition.ranks(), limit);
        }
    }
    return runs;
}

}  // namespace tessera
