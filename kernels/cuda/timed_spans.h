// How long parts of a stream take on the device.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cuda/streams.h"

namespace tessera::cuda {

/// Spans of streams, numbered from 1. The last kKept of them keep their ends; a host that is farther ahead waits.
class TimedSpans {
  public:
    static constexpr std::int64_t kKept = 64;

    /// The streams must outlive it.
    explicit TimedSpans(const Streams& streams) : streams_(streams), spans_(kKept) {}

    /// A span of what `stream` is given from now on, until stop().
    void start(simt::Stream stream);
    /// Its number.
    std::int64_t stop(simt::Stream stream);
    /// Of a span, or of the oldest that is kept.
    [[nodiscard]] const simt::Event& end_of(std::int64_t number) const;
    /// Seconds of those that are over and were not told before, in their order.
    [[nodiscard]] std::vector<double> take();

  private:
    struct Span {
        simt::Event begin{true};
        simt::Event end{true};
    };
    [[nodiscard]] std::size_t place_of(std::int64_t number) const {
        return static_cast<std::size_t>(number) % spans_.size();
    }
    void measure_next();

    const Streams& streams_;
    std::vector<Span> spans_;
    std::vector<double> seconds_;  // measured, not yet told
    std::int64_t last_ = 0;
    std::int64_t measured_ = 0;
};

}  // namespace tessera::cuda
