// Parameters of which each rank keeps a shard: gathered before a unit uses them (stage 3).
#pragma once

#include <vector>

#include "core/memory.h"
#include "kernels/ops.h"
#include "zero/gather_plan.h"
#include "zero/model_states.h"
#include "zero/published_parameters.h"
#include "zero/traffic.h"

namespace tessera {

class GatheredParameters : public PublishedParameters {
  public:
    struct Plans {
        GatherPlan forward;   // of a micro-batch without backward
        GatherPlan training;  // with it
    };

    /// `call_elements`: gathered in one call, in whole buckets. Takes plan() bytes from `carver`.
    GatheredParameters(const ModelStates& states, CommunicationQueue& queue, Ops& ops, Plans plans,
                       std::int64_t call_elements, Carver& carver);

    [[nodiscard]] static MemoryPlan plan(DType storage, const Plans& plans);
    /// What a micro-batch exchanges that follows `plan`.
    [[nodiscard]] static TrafficPlan traffic(const Partition& partition, DType storage, const GatherPlan& plan,
                                             std::int64_t call_elements);

    /// What publish() exchanges: what is resident, of several units in a call.
    [[nodiscard]] static TrafficPlan publication(const Partition& partition, DType storage, std::int64_t call_elements);

    void publish() override;
    void start(Pass last) override;
    void idle() override;
    [[nodiscard]] Token acquire(std::int64_t unit, Pass pass) override;

  protected:
    void release(std::int64_t unit) noexcept override;

  private:
    void issue(std::size_t gather);
    [[nodiscard]] std::byte* place(const UnitGather& gather) const;

    const ModelStates& states_;
    Ops& ops_;
    Plans plans_;
    Matrix block_;
    std::vector<std::vector<BucketRun>> runs_;             // by unit, with offsets in it
    std::vector<BucketRun> published_;                     // with offsets in the resident parameters
    std::vector<std::pair<Matrix, Matrix>> own_resident_;  // (place among the resident parameters, own piece)
    CommunicationQueue::Ticket publication_ = 0;           // the newest

    const GatherPlan* current_ = nullptr;
    std::size_t next_use_ = 0;
    std::size_t next_gather_ = 0;
    std::vector<CommunicationQueue::Ticket> tickets_;  // by gather of the current plan
};

}  // namespace tessera
