#include "zero/sharded_optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

#include "zero/stochastic_weights.h"

namespace tessera {
namespace {

bool decays(const std::string& name, const std::vector<std::string>& patterns) {
    return std::ranges::none_of(
        patterns, [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const ModelStates& states, const Gradients& gradients, Ops& ops,
                                   const Communicator& communicator, const Options& options)
    : gradients_(gradients),
      ops_(ops),
      communicator_(communicator),
      options_(options),
      owned_(states.partition().owned(communicator_.rank())) {
    for (const UnitRange& range : states.ranges()) {
        for_each_part(
            states.units()[static_cast<std::size_t>(range.unit)], range,
            [&](const Parameter& parameter, std::int64_t first, std::int64_t count, std::int64_t skip) {
                runs_.push_back({&parameter, first, decays(parameter.name, options.no_decay),
                                 states.own_masters() ? states.parameters().at(range, skip, count) : Matrix{},
                                 states.masters().at(range, skip, count), states.first_moments().at(range, skip, count),
                                 states.second_moments().at(range, skip, count),
                                 gradients.sums().at(range, skip, count)});
            });
    }
}

double ShardedOptimizer::norm() const {
    std::vector<ConstMatrix> shard;
    std::ranges::transform(owned_, std::back_inserter(shard),
                           [&](const UnitRange& range) { return gradients_.sums().at(range); });
    const double squares = ops_.squared_norm(shard);
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
        if (options_.rounding_seed) {
            adam.rounding = rounding_of(*options_.rounding_seed, *run.parameter, run.from, count);
        }
        ops_.adam(run.master, run.first_moment, run.second_moment, run.gradient, run.values, adam);
    }
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
