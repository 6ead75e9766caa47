// Exchanges of the emulated device: those of the host, whose memory it is, in the order of the stream.
#include "kernels/cuda/stream_exchange.h"
#include "test/simt/streams.h"

namespace tessera::cuda {
namespace {

class EmulatedExchange final : public StreamExchange {
  public:
    EmulatedExchange(Streams& streams, const ExchangeGroup& group) : StreamExchange(streams), host_(*group.host) {}

    void all_to_all(const std::byte* send, std::byte* receive, std::int64_t piece_bytes) const override {
        enqueue([=, this] { host_.all_to_all(send, receive, piece_bytes); });
    }
    void all_gather(const std::byte* own, std::byte* all, std::int64_t buckets,
                    std::int64_t piece_bytes) const override {
        enqueue([=, this] { host_.all_gather(own, all, buckets, piece_bytes); });
    }
    void all_gather_in_place(std::byte* all, std::int64_t buckets, std::int64_t piece_bytes) const override {
        enqueue([=, this] { host_.all_gather_in_place(all, buckets, piece_bytes); });
    }

  private:
    void enqueue(std::function<void()> work) const {
        simt::emulated::enqueue(streams().exchange(), {.work = std::move(work), .meets_ranks = true});
    }

    const BulkExchange& host_;
};

}  // namespace

std::unique_ptr<DeviceExchange> make_exchange(Streams& streams, const ExchangeGroup& group) {
    return std::make_unique<EmulatedExchange>(streams, group);
}

std::string exchange_version() {
    return "exchanges of the host";
}

}  // namespace tessera::cuda
