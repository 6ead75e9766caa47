#include "zero/resident_parameters.h"

namespace tessera {
namespace {

/// The calls that publish each unit. At stage 0 every rank has updated everything.
std::vector<std::vector<BucketRun>> calls_of_units(const Partition& partition, ZeroStage stage,
                                                   std::int64_t call_elements) {
    if (stage == 0 || partition.ranks() == 1) {
        return std::vector<std::vector<BucketRun>>(static_cast<std::size_t>(partition.units()));
    }
    return gathered_runs(partition, call_elements);
}

}  // namespace

ResidentParameters::ResidentParameters(const ModelStates& states, CommunicationQueue& queue, std::int64_t call_elements)
    : PublishedParameters(queue),
      states_(states),
      runs_(calls_of_units(states.partition(), states.options().stage, call_elements)),
      tickets_(runs_.size(), 0) {}

TrafficPlan ResidentParameters::publication(const Partition& partition, ZeroStage stage, DType storage,
                                            std::int64_t call_elements) {
    TrafficPlan plan;
    const auto runs = calls_of_units(partition, stage, call_elements);
    for (std::size_t unit = 0; unit < runs.size(); ++unit) {
        for (const BucketRun& run : runs[unit]) {
            add_call(plan, Exchange::publish_parameters, static_cast<std::int64_t>(unit), run, partition.ranks(),
                     storage);
        }
    }
    return plan;
}

void ResidentParameters::publish() {
    const Matrix values = states_.parameters().values;
    for (std::size_t index = 0; index < runs_.size(); ++index) {
        const auto unit = static_cast<std::int64_t>(index);
        for (const BucketRun& run : runs_[index]) {
            tickets_[index] = publish_run(unit, run, values.col_range(states_.partition().flat(unit) + run.offset, 0));
        }
    }
}

ParameterSource::Token ResidentParameters::acquire(std::int64_t unit, Pass /*pass*/) {
    queue().wait(tickets_[static_cast<std::size_t>(unit)], Exchange::publish_parameters);
    const Matrix values = states_.parameters().values;
    return {this, unit, values.col_range(states_.partition().flat(unit), 0).data, values.dtype};
}

void ResidentParameters::release(std::int64_t /*unit*/) noexcept {}  // nothing to give back

}  // namespace tessera
