// The order of exchanges and operations on a device's two streams.
#pragma once

#include "kernels/cuda/timed_spans.h"
#include "kernels/device.h"

namespace tessera::cuda {

/// What carries the bytes is up to the class that derives from it: it works on streams().exchange().
class StreamExchange : public DeviceExchange {
  public:
    explicit StreamExchange(Streams& streams) : streams_(streams), exchanges_(streams), waits_(streams) {}

    void begin() override;
    [[nodiscard]] Point end() override;
    bool order_after(Point point) override;
    [[nodiscard]] Times take_times() override;
    void finish() override;

  protected:
    [[nodiscard]] Streams& streams() const { return streams_; }

  private:
    Streams& streams_;
    simt::Event asked_;  // of the operations before begin()
    TimedSpans exchanges_;
    TimedSpans waits_;
    Point ordered_ = 0;  // up to which operations already wait
};

/// Exchanges of the device's memory within a group; collective. The streams and the group's exchange of the host must
/// outlive it.
[[nodiscard]] std::unique_ptr<DeviceExchange> make_exchange(Streams& streams, const ExchangeGroup& group);

/// Version of the library that carries the bytes, in words.
[[nodiscard]] std::string exchange_version();

}  // namespace tessera::cuda
