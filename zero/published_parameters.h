// Parameters as a model reads them, when each rank updates its own pieces only.
#pragma once

#include "core/unit_memory.h"
#include "zero/communication_queue.h"
#include "zero/partition.h"

namespace tessera {

/// Adds a call that gives a run of buckets to all ranks.
void add_call(TrafficPlan& plan, Exchange purpose, std::int64_t unit, const BucketRun& run, std::int64_t ranks,
              DType storage);

class PublishedParameters : public ParameterSource {
  public:
    explicit PublishedParameters(CommunicationQueue& queue) : queue_(queue) {}

    /// The own pieces have new values: all ranks exchange what each of them keeps whole. Returns while that is under
    /// way; acquire() waits for what it gives.
    virtual void publish() = 0;

    /// Settles all exchanges: a rank without work waits for the others next, where nobody would watch the device.
    void idle() override { queue_.settle(); }

  protected:
    [[nodiscard]] CommunicationQueue& queue() const { return queue_; }
    /// Of a run, the bytes that this rank sends.
    [[nodiscard]] std::int64_t sent_bytes(const BucketRun& run, DType storage) const;
    /// Exchanges a run whose first bucket begins at `first`, where the own pieces are in their places. `unit`: as in
    /// PlannedExchange.
    CommunicationQueue::Ticket publish_run(std::int64_t unit, const BucketRun& run, const Matrix& first);

  private:
    CommunicationQueue& queue_;
};

}  // namespace tessera
