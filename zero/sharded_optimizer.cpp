#include "zero/sharded_optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

bool decays(const std::string& name, const std::vector<std::string>& patterns) {
    return std::ranges::none_of(patterns,
                                [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

Matrix exchange_buffer(const Partition& partition, Carver& carver) {
    const std::int64_t ranks = partition.ranks();
    return carver.matrix(DType::f32, ranks == 1 ? 0 : ranks, partition.largest_piece());
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(ModelStates& states, Ops& ops, const Communicator& communicator,
                                   const Options& options, Carver& carver)
    : states_(states),
      ops_(ops),
      communicator_(communicator),
      options_(options),
      owned_(states.partition().owned(communicator.rank())),
      exchange_(exchange_buffer(states.partition(), carver)) {
    for (const UnitRange& range : states.ranges()) {
        for (const Parameter& parameter : states.units()[static_cast<std::size_t>(range.unit)].parameters) {
            const std::int64_t first = std::max(range.first, parameter.offset);
            const std::int64_t end = std::min(range.first + range.count, parameter.offset + parameter.elements());
            if (first < end) {
                const std::int64_t skip = first - range.first;
                runs_.push_back({range.flat + skip, states.master_offset(range) + skip, range.shard + skip, end - first,
                                 decays(parameter.name, options.no_decay), &parameter});
            }
        }
    }
}

MemoryPlan ShardedOptimizer::plan(const Partition& partition) {
    Carver counter;
    static_cast<void>(exchange_buffer(partition, counter));
    return {{"communication", counter.used()}};
}

double ShardedOptimizer::reduce() {
    const std::int64_t ranks = communicator_.size();
    const Partition& partition = states_.partition();
    const Matrix gradients = states_.gradients();
    if (ranks > 1) {
        for (const Bucket& bucket : partition.buckets()) {
            const Matrix pieces = gradients.col_range(partition.flat(bucket.unit) + bucket.first, ranks * bucket.piece);
            const Matrix received(exchange_.data, DType::f32, ranks, bucket.piece);
            communicator_.all_to_all(pieces.as<float>(), received.as<float>(), bucket.piece);
            ops_.sum_rows(pieces.col_range(communicator_.rank() * bucket.piece, bucket.piece).row_range(0, 1), received);
        }
    }
    double squares = 0;
    for (const UnitRange& range : owned_) {
        squares += ops_.squared_norm(gradients.col_range(range.flat, range.count));
    }
    if (ranks > 1 && states_.options().stage == 0) {
        gather(gradients);
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
        ops_.adam(states_.masters().col_range(run.master, run.count),
                  states_.first_moments().col_range(run.moments, run.count),
                  states_.second_moments().col_range(run.moments, run.count),
                  states_.gradients().col_range(run.flat, run.count),
                  states_.own_masters() ? states_.parameters().col_range(run.flat, run.count) : Matrix{}, adam);
    }
    if (states_.options().stage != 0) {
        gather(states_.parameters());
    }
}

void ShardedOptimizer::publish() {
    if (states_.own_masters()) {
        for (const Run& run : runs_) {
            ops_.copy(states_.parameters().col_range(run.flat, run.count),
                      states_.masters().col_range(run.master, run.count));
        }
    }
    if (states_.options().stage != 0) {
        gather(states_.parameters());
    }
}

void ShardedOptimizer::gather(Matrix flat) const {
    if (communicator_.size() == 1) {
        return;
    }
    const Partition& partition = states_.partition();
    const std::vector<Bucket>& buckets = partition.buckets();
    const std::int64_t limit = std::max(options_.gather_elements, partition.bucket_elements());
    for (std::size_t i = 0; i < buckets.size();) {
        // Consecutive buckets of one size lie one after another (units follow each other without a gap).
        const std::int64_t size = buckets[i].piece * communicator_.size();
        std::int64_t count = 1;
        while (i + static_cast<std::size_t>(count) < buckets.size() &&
               buckets[i + static_cast<std::size_t>(count)].piece == buckets[i].piece && (count + 1) * size <= limit) {
            ++count;
        }
        const Matrix start = flat.col_range(partition.flat(buckets[i].unit) + buckets[i].first, 0);
        communicator_.all_gather_in_place(start.data, count, buckets[i].piece * size_of(flat.dtype));
        i += static_cast<std::size_t>(count);
    }
}

std::string ShardedOptimizer::first_non_finite() const {
    for (const Run& run : runs_) {
        const Matrix gradient = states_.gradients().col_range(run.flat, run.count);
        if (!std::isfinite(ops_.squared_norm(gradient))) {
            return run.parameter->name;
        }
    }
    return {};
}

}  // namespace tessera
