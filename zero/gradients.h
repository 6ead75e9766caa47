// The gradients of a rank: summed over micro-batches and ranks, whole (stages 0 and 1) or its shard (2 and 3).
#pragma once

#include <vector>

#include "core/base/stopwatch.h"
#include "core/memory.h"
#include "core/unit_memory.h"
#include "kernels/ops.h"
#include "zero/communication_queue.h"
#include "zero/lifetimes.h"
#include "zero/model_states.h"
#include "zero/partition.h"
#include "zero/traffic.h"

namespace tessera {

/// A bucket is exchanged as soon as its unit is done: all-to-all of its pieces, then a sum in rank order by its owner.
/// Pieces may travel in bf16: what a rank contributes to an exchange, the owner too, is rounded once and added in f32.
/// Stages 0 and 1 do so in the last micro-batch of a step, on the sums over all of them. Stages 2 and 3 do so in each
/// and add the result to the shard; a unit's own buffer lives only while the unit is at work.
class Gradients : public GradientSink {
  public:
    struct Options {
        ZeroStage stage = 1;
        DType exchange = DType::f32;  // in which pieces travel: f32 or bf16
    };

    /// `uses`: UnitUses::gradients of a micro-batch. Takes plan() bytes from `carver`.
    Gradients(const Partition& partition, const std::vector<UnitUse>& uses, const Options& options, Ops& ops,
              CommunicationQueue& queue, Carver& carver);

    [[nodiscard]] static MemoryPlan plan(const Partition& partition, const std::vector<UnitUse>& uses,
                                         const Options& options);
    /// What is exchanged in a step: as it is at stages 0 and 1, for each micro-batch at 2 and 3.
    [[nodiscard]] static TrafficPlan traffic(const Partition& partition, const Options& options);

    /// A step of so many micro-batches begins; its gradients are 0.
    void start(std::int64_t micro_batches);
    [[nodiscard]] View begin(std::int64_t unit) override;
    void done(std::int64_t unit) override;
    /// Waits for the exchange. Afterwards sums() are final.
    void finish();

    /// Since the backward pass of the newest micro-batch began.
    [[nodiscard]] double seconds_since_first_begin() const { return since_first_begin_.seconds(); }

    /// Over all ranks: for what the rank owns; at stage 0 for everything. f32
    [[nodiscard]] const ShardableVector& sums() const { return sums_; }

  private:
    struct Buffers {
        Buffers(const Partition& partition, const std::vector<UnitUse>& uses, const Options& options, Carver& carver);
        ShardableVector sums;
        Matrix units;                       // stages 2 and 3: buffers of the units at work
        std::vector<std::int64_t> offsets;  // in `units`, by unit
        Matrix sent;                        // [ranks, largest piece], empty where pieces travel in f32
        Matrix received;                    // [ranks, largest piece]
    };

    [[nodiscard]] std::byte* unit_data(std::int64_t unit) const;
    void exchange(const Bucket& bucket, bool add);

    const Partition& partition_;
    Options options_;
    Ops& ops_;
    const Communicator& communicator_;
    CommunicationQueue& queue_;
    Buffers buffers_;
    ShardableVector& sums_;
    std::vector<std::vector<Bucket>> buckets_;  // by unit
    std::vector<bool> begun_;                   // in this micro-batch, by unit
    std::int64_t units_done_ = 0;               // in this micro-batch
    std::int64_t micro_batches_ = 1;
    std::int64_t micro_batch_ = 0;
    CommunicationQueue::Ticket last_ = 0;  // of the unit that was done last
    Stopwatch since_first_begin_;
};

}  // namespace tessera
