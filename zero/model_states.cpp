#include "zero/model_states.h"

#include <algorithm>
#include <cstring>

namespace tessera {

ModelStates::ModelStates(const std::vector<Unit>& units, const Partition& partition, const Options& options,
                         Carver& carver)
    : units_(units), partition_(partition), options_(options) {
    parameters_ = carver.matrix(options.storage, 1, partition.flat_elements());
    if (!options.training) {
        return;
    }
    ranges_ = options.stage == 0 ? partition.everything() : partition.owned(options.rank);
    const std::int64_t states = options.stage == 0 ? partition.flat_elements() : partition.shard_elements();
    gradients_ = carver.matrix(DType::f32, 1, partition.flat_elements());
    if (own_masters()) {
        masters_ = carver.matrix(DType::f32, 1, states);
    }
    first_moments_ = carver.matrix(DType::f32, 1, states);
    second_moments_ = carver.matrix(DType::f32, 1, states);
}

MemoryPlan ModelStates::plan(const std::vector<Unit>& units, const Partition& partition, const Options& options) {
    Carver counter;
    const ModelStates states(units, partition, options, counter);
    MemoryPlan plan;
    const auto add = [&](const char* purpose, const Matrix& matrix) {
        if (matrix.elements() > 0) {
            plan.push_back({purpose, round_up(matrix.elements() * size_of(matrix.dtype), kMemoryAlignment)});
        }
    };
    add("parameters", states.parameters_);
    add("gradients", states.gradients_);
    add("fp32 masters", states.masters_);
    add("first moments", states.first_moments_);
    add("second moments", states.second_moments_);
    return plan;
}

ParameterSource::Token ModelStates::acquire(std::int64_t unit, Pass /*pass*/) {
    return {this, unit, parameters_.col_range(partition_.flat(unit), 0).data, options_.storage};
}

void ModelStates::release(std::int64_t /*unit*/) noexcept {}  // resident: nothing to give back

GradientSink::View ModelStates::begin(std::int64_t unit) {
    return {gradients_.col_range(partition_.flat(unit), 0).data, DType::f32};
}

void ModelStates::done(std::int64_t /*unit*/) {}  // buckets are reduced after the last micro-step

void ModelStates::load(const ReadParameter& read) {
    for (std::int64_t u = 0; u < partition_.units(); ++u) {
        for (const Parameter& parameter : units_[static_cast<std::size_t>(u)].parameters) {
            const Matrix to = parameters_.col_range(partition_.flat(u) + parameter.offset, parameter.elements());
            read(parameter, 0, parameter.elements(), options_.storage, to.data);
        }
    }
    if (!options_.training) {
        return;
    }
    std::memset(first_moments_.data, 0, static_cast<std::size_t>(first_moments_.elements() * 4));
    std::memset(second_moments_.data, 0, static_cast<std::size_t>(second_moments_.elements() * 4));
    if (!own_masters()) {
        return;
    }
    for (const UnitRange& range : ranges_) {
        for (const Parameter& parameter : units_[static_cast<std::size_t>(range.unit)].parameters) {
            const std::int64_t first = std::max(range.first, parameter.offset);
            const std::int64_t end = std::min(range.first + range.count, parameter.offset + parameter.elements());
            if (first < end) {
                read(parameter, first - parameter.offset, end - first, DType::f32,
                     masters_.col_range(range.shard + first - range.first, 0).data);
            }
        }
    }
}

void ModelStates::zero_gradients() {
    std::memset(gradients_.data, 0, static_cast<std::size_t>(gradients_.elements() * 4));
}

}  // namespace tessera
