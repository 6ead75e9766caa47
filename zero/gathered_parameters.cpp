#include "zero/gathered_parameters.h"

#include <algorithm>

namespace tessera {
namespace {

Matrix block(DType storage, const GatheredParameters::Plans& plans, Carver& carver) {
    return carver.matrix(storage, 1, std::max(plans.forward.block_elements, plans.training.block_elements));
}

/// The calls that publish what is resident. Its buckets lie one after another.
std::vector<BucketRun> calls_of_residents(const Partition& partition, std::int64_t call_elements) {
    std::vector<BucketRun> runs;
    if (partition.ranks() == 1) {
        return runs;
    }
    std::int64_t offset = 0;
    for (const Bucket& bucket : partition.buckets()) {
        if (bucket.resident) {
            join(runs, bucket, offset, partition.ranks(), call_elements);
            offset += bucket.piece * partition.ranks();
        }
    }
    return runs;
}

}  // namespace

GatheredParameters::GatheredParameters(const ModelStates& states, CommunicationQueue& queue, Ops& ops, Plans plans,
                                       std::int64_t call_elements, Carver& carver)
    : PublishedParameters(queue),
      states_(states),
      ops_(ops),
      plans_(std::move(plans)),
      block_(block(states.options().storage, plans_, carver)),
      runs_(gathered_runs(states.partition(), call_elements)),
      published_(calls_of_residents(states.partition(), call_elements)) {
    const Partition& partition = states.partition();
    std::int64_t offset = 0;
    for (const Bucket& bucket : partition.buckets()) {
        if (bucket.resident) {
            const std::int64_t own = offset + queue.communicator().rank() * bucket.piece;
            own_resident_.emplace_back(states.resident().col_range(own, bucket.piece),
                                       states.parameters().values.col_range(bucket.shard, bucket.piece));
            offset += bucket.piece * partition.ranks();
        }
    }
}

MemoryPlan GatheredParameters::plan(DType storage, const Plans& plans) {
    Carver counter;
    static_cast<void>(block(storage, plans, counter));
    return {{"gathered parameters", counter.used()}};
}

TrafficPlan GatheredParameters::traffic(const Partition& partition, DType storage, const GatherPlan& plan,
                                        std::int64_t call_elements) {
    TrafficPlan traffic;
    const auto runs = gathered_runs(partition, call_elements);
    for (const UnitGather& gather : plan.gathers) {
        for (const BucketRun& run : runs[static_cast<std::size_t>(gather.unit)]) {
            add_call(traffic, Exchange::gather_parameters, gather.unit, run, partition.ranks(), storage);
        }
    }
    return traffic;
}

TrafficPlan GatheredParameters::publication(const Partition& partition, DType storage, std::int64_t call_elements) {
    TrafficPlan plan;
    for (const BucketRun& run : calls_of_residents(partition, call_elements)) {
        add_call(plan, Exchange::publish_parameters, -1, run, partition.ranks(), storage);
    }
    return plan;
}

void GatheredParameters::publish() {
    for (const auto& [to, from] : own_resident_) {
        ops_.copy(to, from);
    }
    for (const BucketRun& run : published_) {
        publication_ = publish_run(-1, run, states_.resident().col_range(run.offset, 0));
    }
}

void GatheredParameters::start(Pass last) {
    queue().wait(publication_, Exchange::publish_parameters);
    current_ = last == Pass::forward ? &plans_.forward : &plans_.training;
    next_use_ = 0;
    next_gather_ = 0;
    tickets_.assign(current_->gathers.size(), 0);
}

void GatheredParameters::idle() {
    start(Pass::forward);
    while (next_use_ < current_->uses.size()) {
        static_cast<void>(acquire(current_->uses[next_use_].unit, Pass::forward));
    }
    PublishedParameters::idle();
}

ParameterSource::Token GatheredParameters::acquire(std::int64_t unit, Pass /*pass*/) {
    if (current_ == nullptr || next_use_ >= current_->uses.size() || current_->uses[next_use_].unit != unit) {
        fail(ExitCode::internal, "unit {} was acquired out of the planned order", unit);
    }
    const auto use = static_cast<std::int64_t>(next_use_);
    const auto issue_until = [&](auto&& due) {
        while (next_gather_ < current_->gathers.size() && due(current_->gathers[next_gather_])) {
            issue(next_gather_++);
        }
    };
    issue_until([&](const UnitGather& gather) { return gather.needed <= use; });
    const std::int64_t own = current_->gather_of[next_use_];
    ++next_use_;
    const DType dtype = states_.options().storage;
    const Unit& description = states_.units()[static_cast<std::size_t>(unit)];
    const Matrix resident = states_.resident().col_range(states_.resident_offset(unit), 0);
    if (own < 0) {
        return {this, unit, resident.data, dtype};
    }
    const UnitGather& gather = current_->gathers[static_cast<std::size_t>(own)];
    queue().wait(tickets_[static_cast<std::size_t>(own)], Exchange::gather_parameters);
    if (gather.needed == use) {
        // Small parameters that never left, put behind those that came, so that the unit is one range.
        const std::int64_t count = description.elements - description.resident_from;
        const Matrix behind = Matrix(place(gather), dtype, 1, 0).col_range(description.resident_from, count);
        ops_.copy(behind, resident.col_range(0, count));
    }
    issue_until([&](const UnitGather& next) { return next.issued <= use; });
    return {this, unit, place(gather), dtype};
}

void GatheredParameters::release(std::int64_t /*unit*/) noexcept {}  // the plan says what lies there next, and when

std::byte* GatheredParameters::place(const UnitGather& gather) const {
    return block_.col_range(gather.offset, 0).data;
}

void GatheredParameters::issue(std::size_t index) {
    const UnitGather& gather = current_->gathers[index];
    const BulkExchange& exchange = queue().bulk();
    const std::int64_t element = size_of(states_.options().storage);
    for (const BucketRun& run : runs_[static_cast<std::size_t>(gather.unit)]) {
        const std::byte* own = states_.parameters().values.col_range(run.shard, 0).data;
        std::byte* all = place(gather) + run.offset * element;
        tickets_[index] =
            queue().submit({Exchange::gather_parameters, gather.unit, sent_bytes(run, states_.options().storage)},
                           [&exchange, own, all, buckets = run.buckets, piece = run.piece * element] {
                               exchange.all_gather(own, all, buckets, piece);
                           });
    }
}

}  // namespace tessera
