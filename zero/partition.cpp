#include "zero/partition.h"

#include <algorithm>

#include "core/base/checked.h"
#include "core/parameters.h"

namespace tessera {

Partition::Partition(std::vector<std::int64_t> unit_elements, std::int64_t ranks, std::int64_t bucket_elements)
    : elements_(std::move(unit_elements)), ranks_(ranks) {
    const std::int64_t step = checked_mul(ranks, kParameterAlignment, "elements of a bucket");
    bucket_elements_ = round_up(std::max<std::int64_t>(bucket_elements, 1), step);
    std::int64_t flat = 0;
    for (std::int64_t unit = 0; unit < units(); ++unit) {
        flat_.push_back(flat);
        const std::int64_t elements = elements_[static_cast<std::size_t>(unit)];
        std::int64_t first = 0;
        while (first < elements) {
            const std::int64_t size = std::min(bucket_elements_, round_up(elements - first, step));
            buckets_.push_back({unit, first, size / ranks, shard_elements_});
            shard_elements_ += size / ranks;
            first += size;
        }
        flat = checked_add(flat, first, "elements of a model");
    }
    flat_.push_back(flat);
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

}  // namespace tessera
