#include "zero/published_parameters.h"

namespace tessera {
namespace {

/// Each of the other ranks gets the own pieces.
std::int64_t bytes_of(const BucketRun& run, std::int64_t ranks, DType storage) {
    return (ranks - 1) * run.buckets * run.piece * size_of(storage);
}

}  // namespace

void add_call(TrafficPlan& plan, Exchange purpose, std::int64_t unit, const BucketRun& run, std::int64_t ranks,
              DType storage) {
    add(plan, {purpose, unit, 1, bytes_of(run, ranks, storage)});
}

std::int64_t PublishedParameters::sent_bytes(const BucketRun& run, DType storage) const {
    return bytes_of(run, queue_.communicator().size(), storage);
}

CommunicationQueue::Ticket PublishedParameters::publish_run(std::int64_t unit, const BucketRun& run,
                                                            const Matrix& first) {
    return queue_.submit({Exchange::publish_parameters, unit, sent_bytes(run, first.dtype)},
                         [this, data = first.data, buckets = run.buckets, piece = run.piece * size_of(first.dtype)] {
                             queue_.bulk().all_gather_in_place(data, buckets, piece);
                         });
}

}  // namespace tessera
