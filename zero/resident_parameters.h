// Parameters that are whole on every rank (stages 0 to 2).
#pragma once

#include <vector>

#include "zero/model_states.h"
#include "zero/published_parameters.h"

namespace tessera {

class ResidentParameters : public PublishedParameters {
  public:
    /// `call_elements`: published in one call, in whole buckets of one unit.
    ResidentParameters(const ModelStates& states, CommunicationQueue& queue, std::int64_t call_elements);

    /// What publish() exchanges.
    [[nodiscard]] static TrafficPlan publication(const Partition& partition, ZeroStage stage, DType storage,
                                                 std::int64_t call_elements);

    void publish() override;
    [[nodiscard]] Token acquire(std::int64_t unit, Pass pass) override;

  protected:
    void release(std::int64_t unit) noexcept override;

  private:
    const ModelStates& states_;
    std::vector<std::vector<BucketRun>> runs_;         // by unit, with offsets in it
    std::vector<CommunicationQueue::Ticket> tickets_;  // of the newest publication, by unit
};

}  // namespace tessera
