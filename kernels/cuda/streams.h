// The two streams of a device: one computes, one exchanges.
#pragma once

#include <functional>

#include "kernels/cuda/runtime.h"

namespace tessera::cuda {

/// Operations and exchanges of a device share it. One thread at a time.
class Streams {
  public:
    Streams() : compute_(simt::make_stream()), exchange_(simt::make_stream()), current_(compute_) {}
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;
    ~Streams() {
        simt::destroy_stream(exchange_);
        simt::destroy_stream(compute_);
    }

    /// Where operations go now.
    [[nodiscard]] simt::Stream current() const { return current_; }
    [[nodiscard]] simt::Stream compute() const { return compute_; }
    [[nodiscard]] simt::Stream exchange() const { return exchange_; }
    void use(simt::Stream stream) { current_ = stream; }

    /// Called again and again while the host waits; throws where waiting is in vain.
    void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }
    /// Returns when the point is passed.
    void wait(const simt::Event& point) const;
    /// Returns when all that `stream` was given is done.
    void wait(simt::Stream stream) const;

  private:
    simt::Stream compute_;
    simt::Stream exchange_;
    simt::Stream current_;
    std::function<void()> watch_;
};

}  // namespace tessera::cuda
