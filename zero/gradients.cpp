#include "zero/gradients.h"

#include <algorithm>

namespace tessera {

Gradients::Buffers::Buffers(const Partition& partition, const std::vector<UnitUse>& uses, const Options& options,
                            Carver& carver)
    : offsets(static_cast<std::size_t>(partition.units()), 0) {
    const std::int64_t ranks = partition.ranks();
    sums.sharded = options.stage >= 2;
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
    const std::int64_t rows = ranks == 1 ? 0 : ranks;
    sent = carver.matrix(options.exchange, options.exchange == DType::f32 ? 0 : rows, partition.largest_piece());
    received = carver.matrix(options.exchange, rows, partition.largest_piece());
}

Gradients::Gradients(const Partition& partition, const std::vector<UnitUse>& uses, const Options& options, Ops& ops,
                     CommunicationQueue& queue, Carver& carver)
    : partition_(partition),
      options_(options),
      ops_(ops),
      communicator_(queue.communicator()),
      queue_(queue),
      buffers_(partition, uses, options, carver),
      sums_(buffers_.sums),
      buckets_(static_cast<std::size_t>(partition.units())),
      begun_(static_cast<std::size_t>(partition.units()), false) {
    for (const Bucket& bucket : partition.buckets()) {
        buckets_[static_cast<std::size_t>(bucket.unit)].push_back(bucket);
    }
}

MemoryPlan Gradients::plan(const Partition& partition, const std::vector<UnitUse>& uses, const Options& options) {
    Carver counter;
    const Buffers buffers(partition, uses, options, counter);
    MemoryPlan plan = {{"gradients", round_up(buffers.sums.values.elements() * size_of(DType::f32), kMemoryAlignment)}};
    if (buffers.units.elements() > 0) {
        plan.push_back({"gradients of units at work", buffers.units.elements() * size_of(DType::f32)});
    }
    const auto bytes = [](const Matrix& matrix) {
        return round_up(matrix.elements() * size_of(matrix.dtype), kMemoryAlignment);
    };
    plan.push_back({"exchange of gradients", bytes(buffers.sent) + bytes(buffers.received)});
    return plan;
}

TrafficPlan Gradients::traffic(const Partition& partition, const Options& options) {
    TrafficPlan plan;
    for (const Bucket& bucket : partition.buckets()) {
        const std::int64_t elements = (partition.ranks() - 1) * bucket.piece;
        add(plan, {Exchange::reduce_gradients, bucket.unit, 1, elements * size_of(options.exchange)});
        if (options.stage == 0) {
            add(plan, {Exchange::gather_gradients, bucket.unit, 1, elements * size_of(DType::f32)});
        }
    }
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
    if (sums_.sharded) {
        queue_.wait(last_, Exchange::reduce_gradients);  // whose buffer is another unit's from now on
    }
    if ((last && communicator_.size() > 1) || sums_.sharded) {
        const std::int64_t others = communicator_.size() - 1;
        for (const Bucket& bucket : buckets_[static_cast<std::size_t>(unit)]) {
            const std::int64_t elements = others * bucket.piece;
            last_ = queue_.submit({Exchange::reduce_gradients, unit, elements * size_of(options_.exchange)},
                                  [this, bucket, add = sums_.sharded && micro_batch_ > 0] { exchange(bucket, add); });
            if (others > 0 && options_.stage == 0) {
                last_ =
                    queue_.submit({Exchange::gather_gradients, unit, elements * size_of(DType::f32)}, [this, bucket] {
                        queue_.bulk().all_gather_in_place(unit_data(bucket.unit) + bucket.first * size_of(DType::f32),
                                                          1, bucket.piece * size_of(DType::f32));
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
        ConstMatrix sent = pieces;
        if (options_.exchange != DType::f32) {
            const Matrix rounded(buffers_.sent.data, options_.exchange, 1, ranks * bucket.piece);
            ops_.copy(rounded, pieces);
            sent = rounded;
        }
        const Matrix received(buffers_.received.data, options_.exchange, ranks, bucket.piece);
        queue_.bulk().all_to_all(sent.data, received.data, bucket.piece * size_of(options_.exchange));
        ops_.sum_rows(own, received, add);
    } else if (sums_.sharded) {
        ops_.sum_rows(own, pieces, add);
    }
}

void Gradients::finish() {
    queue_.drain(Exchange::reduce_gradients);
}

}  // namespace tessera
