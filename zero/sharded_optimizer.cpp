#include "zero/sharded_optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

bool decays(const std::string& name, const std::vector<std::string>& patterns) {
    return std::ranges::none_of(
        patterns, [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

/// The calls that give new parameters to all ranks: everything at stages 1 and 2, what is resident at stage 3. Offsets
/// are in the vector of what every rank keeps, which has these buckets one after another.
std::vector<BucketRun> publication(const Partition& partition, ZeroStage stage, std::int64_t gather_elements) {
    std::vector<BucketRun> runs;
    const std::int64_t limit = std::max(gather_elements, partition.bucket_elements());
    std::int64_t offset = 0;
    for (const Bucket& bucket : partition.buckets()) {
        if (stage == 1 || stage == 2 || (stage == 3 && bucket.resident)) {
            join(runs, bucket, offset, partition.ranks(), limit);
            offset += bucket.piece * partition.ranks();
        }
    }
    return runs;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const ModelStates& states, const Gradients& gradients, Ops& ops,
                                   CommunicationQueue& queue, const Options& options)
    : states_(states),
      gradients_(gradients),
      ops_(ops),
      queue_(queue),
      communicator_(queue.communicator()),
      options_(options),
      owned_(states.partition().owned(communicator_.rank())) {
    for (const UnitRange& range : states.ranges()) {
        for_each_part(
            states.units()[static_cast<std::size_t>(range.unit)], range,
            [&](const Parameter& parameter, std::int64_t /*first*/, std::int64_t count, std::int64_t skip) {
                runs_.push_back({&parameter, decays(parameter.name, options.no_decay),
                                 states.own_masters() ? states.parameters().at(range, skip, count) : Matrix{},
                                 states.masters().at(range, skip, count), states.first_moments().at(range, skip, count),
                                 states.second_moments().at(range, skip, count),
                                 gradients.sums().at(range, skip, count)});
            });
    }
    const Partition& partition = states.partition();
    published_ = publication(partition, states.options().stage, options.gather_elements);
    for (const Bucket& bucket : partition.buckets()) {
        if (states.options().stage == 3 && bucket.resident) {
            const std::int64_t offset =
                states.resident_offset(bucket.unit) + bucket.first - partition.gathered_elements(bucket.unit);
            own_resident_.emplace_back(
                states.resident().col_range(offset + communicator_.rank() * bucket.piece, bucket.piece),
                states.parameters().values.col_range(bucket.shard, bucket.piece));
        }
    }
}

TrafficPlan ShardedOptimizer::traffic(const Partition& partition, ZeroStage stage, DType storage,
                                      std::int64_t gather_elements) {
    TrafficPlan plan;
    const std::int64_t others = partition.ranks() - 1;
    if (others > 0) {
        for (const BucketRun& run : publication(partition, stage, gather_elements)) {
            add(plan, {Exchange::publish_parameters, -1, 1, others * run.buckets * run.piece * size_of(storage)});
        }
    }
    return plan;
}

double ShardedOptimizer::norm() const {
    double squares = 0;
    for (const UnitRange& range : owned_) {
        squares += ops_.squared_norm(gradients_.sums().at(range));
    }
    return static_cast<double>(static_cast<float>(std::sqrt(communicator_.ordered_sum(squares))));
}

void ShardedOptimizer::step(double lr, double norm, std::int64_t count) {
    AdamStep adam{.lr = lr,
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .decoupled = options_.decoupled,
                  .bias_correction1 = 1 - std::pow(options_.beta1, static_cast<double>(count)),
                  .bias_correction2 = 1 - std::pow(options_.beta2, static_cast<double>(count))};
    if (options_.clipping > 0) {
        adam.gradient_scale = std::min(1.0, options_.clipping / (norm + 1e-6));
    }
    for (const Run& run : runs_) {
        adam.weight_decay = run.decays ? options_.weight_decay : 0;
        ops_.adam(run.master, run.first_moment, run.second_moment, run.gradient, run.values, adam);
    }
    publish();
}

void ShardedOptimizer::publish() {
    for (const auto& [to, from] : own_resident_) {
        ops_.copy(to, from);
    }
    if (communicator_.size() == 1) {
        return;
    }
    const bool sharded = states_.options().stage == 3;
    const Matrix vector = sharded ? states_.resident() : states_.parameters().values;
    for (const BucketRun& run : published_) {
        const std::int64_t piece = run.piece * size_of(vector.dtype);
        static_cast<void>(
            queue_.submit({Exchange::publish_parameters, -1, (communicator_.size() - 1) * run.buckets * piece},
                          [this, data = vector.col_range(run.offset, 0).data, buckets = run.buckets, piece] {
                              communicator_.all_gather_in_place(data, buckets, piece);
                          }));
    }
    queue_.drain(Exchange::publish_parameters);
}

std::string ShardedOptimizer::first_non_finite() const {
    for (const Run& run : runs_) {
        if (!std::isfinite(ops_.squared_norm(run.gradient))) {
            return run.parameter->name;
        }
    }
    return {};
}

}  // namespace tessera
