#include "zero/gradients.h"

#include <algorithm>

namespace tessera {

Gradients::Buffers::Buffers(const Partition& partition, const std::vector<UnitUse>& uses, ZeroStage stage,
                            Carver& carver)
    : offsets(static_cast<std::size_t>(partition.units()), 0) {
    const std::int64_t ranks = partition.ranks();
    sums.sharded = stage >= 2;
    sums.values = carver.matrix(DType::f32, 1, sums.sharded ? partition.shard_elements() : partition.flat_elements());
    if (sums.sharded) {
        // A buffer is free again when the unit that is done next has seen its exchange end.
        std::vector<std::int64_t> ends;
        std::ranges::transform(uses, std::back_inserter(ends), &UnitUse::end);
        std::ranges::sort(ends);
        std::vector<Lifetime> lifetimes;
        for (const UnitUse& use : uses) {
            const auto next = std::ranges::upper_bound(ends, use.end);
            lifetimes.push_back(
                {use.begin, next == ends.end() ? use.end + 1 : *next, partition.padded_elements(use.unit)});
        }
        const Placement placement = place(lifetimes);
        for (std::size_t i = 0; i < uses.size(); ++i) {
            offsets[static_cast<std::size_t>(uses[i].unit)] = placement.offsets[i];
        }
        units = carver.matrix(DType::f32, 1, placement.size);
    }
    exchange = carver.matrix(DType::f32, ranks == 1 ? 0 : ranks, partition.largest_piece());
}

Gradients::Gradients(const Partition& partition, const std::vector<UnitUse>& uses, ZeroStage stage, Ops& ops,
                     CommunicationQueue& queue, Carver& carver)
    : partition_(partition),
      stage_(stage),
      ops_(ops),
      communicator_(queue.communicator()),
      queue_(queue),
      buffers_(partition, uses, stage, carver),
      sums_(buffers_.sums),
      buckets_(static_cast<std::size_t>(partition.units())),
      begun_(static_cast<std::size_t>(partition.units()), false) {
    for (const Bucket& bucket : partition.buckets()) {
        buckets_[static_cast<std::size_t>(bucket.unit)].push_back(bucket);
    }
}

MemoryPlan Gradients::plan(const Partition& partition, const std::vector<UnitUse>& uses, ZeroStage stage) {
    Carver counter;
    const Buffers buffers(partition, uses, stage, counter);
    MemoryPlan plan = {{"gradients", round_up(buffers.sums.values.elements() * size_of(DType::f32), kMemoryAlignment)}};
    if (buffers.units.elements() > 0) {
        plan.push_back({"gradients of units at work", buffers.units.elements() * size_of(DType::f32)});
    }
    plan.push_back(
        {"exchange of gradients", round_up(buffers.exchange.elements() * size_of(DType::f32), kMemoryAlignment)});
    return plan;
}

void Gradients::start(std::int64_t micro_batches) {
    micro_batches_ = micro_batches;
    micro_batch_ = 0;
    units_done_ = 0;
    std::fill(begun_.begin(), begun_.end(), false);
    ops_.zero(sums_.values);
}

std::byte* Gradients::unit_data(std::int64_t unit) const {
    return sums_.sharded ? buffers_.units.col_range(buffers_.offsets[static_cast<std::size_t>(unit)], 0).data
                         : sums_.values.col_range(partition_.flat(unit), 0).data;
}

GradientSink::View Gradients::begin(std::int64_t unit) {
    const auto index = static_cast<std::size_t>(unit);
    std::byte* data = unit_data(unit);
    if (std::ranges::none_of(begun_, [](bool begun) { return begun; })) {
        since_first_begin_ = Stopwatch();
        queue_.wait(last_, Exchange::reduce_gradients);  // what the micro-batch before left
    }
    if (!begun_[index] && sums_.sharded) {
        ops_.zero(Matrix(data, DType::f32, 1, partition_.padded_elements(unit)));
    }
    begun_[index] = true;
    return {data, DType::f32};
}

void Gradients::done(std::int64_t unit) {
    const bool last = micro_batch_ + 1 == micro_batches_;
    queue_.wait(last_, Exchange::reduce_gradients);
    if ((last && communicator_.size() > 1) || sums_.sharded) {
        const std::int64_t others = communicator_.size() - 1;
        for (const Bucket& bucket : buckets_[static_cast<std::size_t>(unit)]) {
            const std::int64_t bytes = others * bucket.piece * size_of(DType::f32);
            last_ = queue_.submit({Exchange::reduce_gradients, unit, bytes},
                                  [this, bucket, add = sums_.sharded && micro_batch_ > 0] { exchange(bucket, add); });
            if (others > 0 && stage_ == 0) {
                last_ = queue_.submit({Exchange::gather_gradients, unit, bytes}, [this, bucket] {
                    communicator_.all_gather_in_place(unit_data(bucket.unit) + bucket.first * size_of(DType::f32), 1,
                                                      bucket.piece * size_of(DType::f32));
                });
            }
        }
    }
    if (++units_done_ == partition_.units()) {
        units_done_ = 0;
        ++micro_batch_;
        std::fill(begun_.begin(), begun_.end(), false);
    }
}

void Gradients::exchange(const Bucket& bucket, bool add) {
    const std::int64_t ranks = communicator_.size();
    const Matrix pieces =
        Matrix(unit_data(bucket.unit), DType::f32, 1, 0).col_range(bucket.first, ranks * bucket.piece);
    const Matrix own = sums_.sharded ? sums_.values.col_range(bucket.shard, bucket.piece)
                                     : pieces.col_range(communicator_.rank() * bucket.piece, bucket.piece);
    if (ranks > 1) {
        const Matrix received(buffers_.exchange.data, DType::f32, ranks, bucket.piece);
        communicator_.all_to_all(pieces.as<float>(), received.as<float>(), bucket.piece);
        ops_.sum_rows(own, received, add);
    } else if (sums_.sharded) {
        ops_.sum_rows(own, pieces, add);
    }
}

void Gradients::finish() {
    queue_.drain(Exchange::reduce_gradients);
}

}  // namespace tessera
